"""The order and size of work, without a model."""

from __future__ import annotations

import pytest

from engine.context import Context
from engine.generation import Generation
from engine.kv.blocks import BlockPool
from engine.messages import GenerateParams, Priority
from engine.rate_limit import RateLimits
from engine.scheduler import Plan, Scheduler


class Bench:
    """Contexts in a pool, and a scheduler whose plans are carried out in name only."""

    def __init__(
        self, blocks: int = 64, step_tokens: int = 32, background: int | None = 8, limits: RateLimits | None = None
    ) -> None:
        self.now = 0.0
        self.pool = BlockPool(blocks, 4)
        self.scheduler = Scheduler(
            step_tokens, background_step_tokens=background, limits=limits, clock=lambda: self.now
        )
        self.contexts: list[Context] = []

    def context(
        self, tokens: int, priority: Priority = "foreground", *, generates: bool = False, payer: int = 0
    ) -> Context:
        context = Context(len(self.contexts), self.pool, priority, arrival=len(self.contexts), payer=payer)
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
        pending = [context for context in self.contexts if context.pending]
        plan = self.scheduler.plan(pending, lambda: [c for c in self.contexts if c.blocks and not c.pending])
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


def learned(bench: Bench, base: float, slope: float) -> None:
    """Steps of every size that take `base` + `slope` a token."""
    for _ in range(200):
        for tokens in (1, 8, 64, 256):
            bench.scheduler.step_time.learn(0, tokens, base + slope * tokens)


@pytest.mark.parametrize(("slope", "allowed"), [(0.001, 11), (0.0001, 101)])
def test_background_lengthens_a_step_by_at_most_one_decode_step(slope: float, allowed: int) -> None:
    """A decode step takes 10 ms and a bit; so may the background part of a step."""
    bench = Bench(blocks=1000, step_tokens=512, background=None)
    learned(bench, 0.010, slope)
    answer = bench.context(3, generates=True)
    bench.step()
    thinking = bench.context(2000, "background")
    assert shape(bench.step()) == [(answer.id, 1), (thinking.id, allowed)]


def test_background_alone_keeps_the_step_about_two_decodes_long() -> None:
    bench = Bench(blocks=1000, step_tokens=512, background=None)
    learned(bench, 0.010, 0.001)
    bench.context(2000, "background")
    (work,) = bench.step().work
    assert work.count == 16


def test_background_that_never_got_anything_gets_one_share_in_the_end() -> None:
    bench = Bench(blocks=4000, step_tokens=16)
    thinking = bench.context(40, "background")
    bench.context(16 * 200)
    steps = [shape(bench.step()) for _ in range(130)]
    served = [i for i, step in enumerate(steps) if (thinking.id, 8) in step]
    assert served == [64, 129]


def test_a_payer_waits_for_its_allowance_and_others_do_not() -> None:
    bench = Bench(limits=RateLimits(0.0, 6.0, 0.0))
    bench.context(20, "background", payer=1)
    bench.context(4, "background", payer=2)
    first = shape(bench.step())
    assert first == [(0, 8)], "a bucket that was never used is not asked"
    assert shape(bench.step()) == [(1, 4)]
    pending = [bench.contexts[0]]
    wait = bench.scheduler.wait_seconds(pending)
    assert wait == pytest.approx(3 / 6)
    bench.now += wait or 0.0
    assert shape(bench.step()) == [(0, 1)]


def test_only_limited_background_work_makes_the_loop_wait() -> None:
    bench = Bench(limits=RateLimits(2.0, 0.0, 0.0))
    limited = bench.context(20, "background", payer=1)
    bench.step()
    assert (bench.scheduler.wait_seconds([limited]) or 0) > 0
    sent = bench.context(5)
    assert bench.scheduler.wait_seconds([limited, sent]) == 0.0
    assert bench.scheduler.wait_seconds([]) is None


def draft(context: Context, length: int) -> None:
    assert context.generation is not None
    context.generation.proposal = [1] * length


def test_a_draft_alone_may_fill_the_step_and_shared_ones_may_not() -> None:
    alone = Bench(blocks=1000, step_tokens=64)
    only = alone.context(3, generates=True)
    draft(only, 100)
    assert [work.tokens for work in alone.step().work] == [64]
    shared = Bench(blocks=1000, step_tokens=64)
    learned(shared, 0.010, 0.001)
    for _ in range(4):
        draft(shared.context(1, generates=True), 100)
    drafted = sum(len(work.draft) for work in shared.step().work)
    assert 5 <= drafted <= 7


def test_a_draft_shrinks_to_the_blocks_that_are_free() -> None:
    bench = Bench(blocks=4, step_tokens=64)
    idle = bench.context(8)
    bench.settle()
    speaker = bench.context(3, generates=True)
    draft(speaker, 40)
    plan = bench.step()
    assert plan.discards == []
    assert idle.blocks
    assert [len(work.draft) for work in plan.work] == [5]


def test_models_share_the_step_and_not_their_blocks() -> None:
    bench = Bench(blocks=4, step_tokens=32)
    other = BlockPool(4, 4)
    bench.context(16)
    bench.settle()
    thinking = Context(50, other, "foreground", arrival=50, model=1)
    thinking.append([0] * 16)
    bench.contexts.append(thinking)
    plan = bench.scheduler.plan([thinking], lambda: bench.contexts[:1])
    assert shape(plan) == [(50, 16)]
    assert plan.discards == []


def test_a_full_pool_of_one_model_does_not_stop_the_other() -> None:
    bench = Bench(blocks=2, step_tokens=32)
    bench.context(30)
    other = Context(50, BlockPool(8, 4), "foreground", arrival=50, model=1)
    other.append([0] * 8)
    plan = bench.scheduler.plan([*bench.contexts, other], list)
    assert shape(plan) == [(50, 8)]
