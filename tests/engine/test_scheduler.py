"""The order and size of work, without a model."""

from __future__ import annotations

from engine.context import Context, Generation
from engine.kv.blocks import BlockPool
from engine.messages import GenerateParams, Priority
from engine.scheduler import Plan, Scheduler


class Bench:
    """Contexts in a pool, and a scheduler whose plans are carried out in name only."""

    def __init__(self, blocks: int = 64, step_tokens: int = 32, background: int = 8) -> None:
        self.pool = BlockPool(blocks, 4)
        self.scheduler = Scheduler(self.pool, step_tokens, background)
        self.contexts: list[Context] = []

    def context(self, tokens: int, priority: Priority = "foreground", *, generates: bool = False) -> Context:
        context = Context(len(self.contexts), self.pool, priority, arrival=len(self.contexts))
        context.append([0] * tokens)
        self.contexts.append(context)
        if generates:
            self.generate(context)
        return context

    def generate(self, context: Context) -> None:
        length = len(context.tokens)
        context.generation = Generation(1, GenerateParams(99), 99, frozenset(), length, 0, 0.0)
        context.wants_prefill = False
        context.shrink_kv(length - 1)

    def step(self) -> Plan:
        plan = self.scheduler.plan(self.contexts)
        for work in plan.work:
            work.context.kv_length = work.start + work.count
            if not work.context.pending:
                work.context.wants_prefill = False
            if work.samples:
                assert work.context.generation is not None
                work.context.tokens.append(0)
                work.context.generation.output_tokens += 1
        self.pool.check_integrity([context.blocks for context in self.contexts])
        return plan

    def settle(self) -> None:
        while self.step().work:
            pass


def shape(plan: Plan) -> list[tuple[int, int]]:
    return [(work.context.id, work.count) for work in plan.work]


def test_prefill_is_cut_to_the_budget() -> None:
    bench = Bench(step_tokens=10)
    bench.context(25)
    assert [shape(bench.step()) for _ in range(4)] == [[(0, 10)], [(0, 10)], [(0, 5)], []]


def test_only_the_last_chunk_samples() -> None:
    bench = Bench(step_tokens=10)
    bench.context(15, generates=True)
    assert [work.samples for work in bench.step().work] == [False]
    assert [work.samples for work in bench.step().work] == [True]


def test_decodes_come_before_prefill_and_background_comes_last() -> None:
    bench = Bench()
    decoding = bench.context(3, generates=True)
    bench.step()
    prompt = bench.context(10)
    thinking = bench.context(20, "background")
    typed = bench.context(6)
    assert shape(bench.step()) == [(decoding.id, 1), (prompt.id, 10), (typed.id, 6), (thinking.id, 8)]


def test_background_is_limited_even_alone() -> None:
    bench = Bench(background=8)
    bench.context(20, "background")
    bench.context(20, "background")
    assert shape(bench.step()) == [(0, 8)]


def test_foreground_may_leave_nothing_for_background() -> None:
    bench = Bench(step_tokens=10)
    bench.context(20, "background")
    bench.context(30)
    assert shape(bench.step()) == [(1, 10)]


def test_promotion_overtakes_background_work_that_came_earlier() -> None:
    bench = Bench(step_tokens=10)
    bench.context(20, "background")
    promoted = bench.context(20, "background")
    promoted.priority = "foreground"
    assert shape(bench.step()) == [(1, 10)]


def test_work_is_first_come_first_served() -> None:
    bench = Bench(step_tokens=10)
    late, early = bench.context(10), bench.context(10)
    late.arrival, early.arrival = 5, 4
    assert shape(bench.step()) == [(early.id, 10)]


def test_idle_contexts_lose_their_kv_first_least_recently_used_first() -> None:
    bench = Bench(blocks=8)
    old, recent = bench.context(8), bench.context(8)
    bench.settle()
    recent.last_used, old.last_used = 100, 50
    bench.context(24)
    assert [(d.context.id, d.reason) for d in bench.step().discards] == [(old.id, "memory pressure")]
    assert recent.blocks


def test_background_work_is_preempted_before_foreground_work() -> None:
    bench = Bench(blocks=10, background=100)
    first = bench.context(12)
    bench.step()
    second = bench.context(12, "background", generates=True)
    bench.step()
    bench.generate(first)
    third = bench.context(24)
    plan = bench.step()
    assert [(d.context.id, d.reason) for d in plan.discards] == [(second.id, "preempted")]
    assert (third.id, 24) in shape(plan)


def test_background_never_takes_from_foreground() -> None:
    bench = Bench(blocks=4)
    answer = bench.context(14, generates=True)
    bench.step()
    bench.context(8, "background")
    assert shape(bench.step()) == [(answer.id, 1)]
    assert answer.blocks


def test_nobody_overtakes_a_prompt_that_waits_for_blocks() -> None:
    bench = Bench(blocks=4)
    answer = bench.context(10, generates=True)
    bench.step()
    bench.context(12)
    bench.context(2)
    assert shape(bench.step()) == [(answer.id, 1)]


def test_the_oldest_work_always_moves() -> None:
    """Eight generations of 24 tokens in a pool of 32 tokens all finish."""
    bench = Bench(blocks=8, step_tokens=6)
    contexts = [bench.context(9, "background" if i % 2 else "foreground", generates=True) for i in range(8)]
    for _ in range(2000):
        if not bench.step().work:
            break
        for context in contexts:
            if context.generation is not None and context.generation.output_tokens >= 15:
                context.generation = None
    assert all(len(context.tokens) == 24 for context in contexts)


def test_a_preempted_idle_prefill_is_not_started_again_by_itself() -> None:
    bench = Bench(blocks=4)
    idle = bench.context(12)
    bench.settle()
    bench.context(12)
    bench.settle()
    assert idle.kv_length == 0
    assert shape(bench.step()) == []
