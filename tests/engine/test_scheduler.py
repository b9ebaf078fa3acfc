"""The order and size of work, without a model."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.context import Context
from engine.generation import Generation
from engine.kv.blocks import BlockPool
from engine.messages import GenerateParams, Priority
from engine.rate_limit import RateLimits
from engine.scheduler import Plan, Scheduler, Work


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


def learned(bench: Bench, base: float, slope: float, model: int = 0) -> None:
    """Steps of every size that take `base` + `slope` a token."""
    for _ in range(200):
        for tokens in (1, 8, 64, 256):
            bench.scheduler.step_time.learn(model, tokens, 0, base + slope * tokens)


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
    assert shape(bench.step()) == [(0, 6), (1, 2)]
    assert shape(bench.step()) == [(1, 2)]
    pending = [bench.contexts[0]]
    wait = bench.scheduler.wait_seconds(pending)
    assert wait == pytest.approx(1 / 6)
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


def test_work_that_waits_for_the_blocks_of_limited_work_does_not_make_the_loop_spin() -> None:
    bench = Bench(blocks=4, limits=RateLimits(0.0, 2.0, 0.0))
    holder = bench.context(16, "background", payer=1)
    holder.reserve(16)
    holder.kv_length = 8
    waiting = bench.context(8, "background", payer=2)
    bench.step()
    assert bench.step().work == []
    assert bench.scheduler.wait_seconds([holder, waiting]) == pytest.approx(0.5)
    assert bench.scheduler.wait_seconds([holder, waiting, bench.context(1, "background")]) == 0.0


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
    speakers = [shared.context(1, generates=True) for _ in range(4)]
    shared.step()
    for speaker in speakers:
        draft(speaker, 100)
    drafts = [len(work.draft) for work in shared.step().work]
    assert 4 <= sum(drafts) <= 7
    assert min(drafts) > 0, "each gets its share of what all may add"


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


def test_an_older_prompt_takes_the_blocks_of_a_later_decode_of_the_same_step() -> None:
    """As when a tool result comes back and others have begun to speak meanwhile."""
    bench = Bench(blocks=6, step_tokens=32)
    resumed = bench.context(2)
    speaker = bench.context(14, generates=True)
    bench.step()
    resumed.append([0] * 18)
    plan = bench.step()
    assert [(d.context.id, d.reason) for d in plan.discards] == [(speaker.id, "preempted")]
    assert shape(plan) == [(resumed.id, 18)]


def test_an_older_prompt_does_not_wait_behind_a_later_decode_that_waits() -> None:
    bench = Bench(blocks=4, step_tokens=4)
    speaker = bench.context(4, generates=True)
    bench.step()
    older = bench.context(12)
    older.arrival = -1
    older.reserve(12)
    older.kv_length = 8
    assert speaker.is_decoding
    assert shape(bench.step()) == [(older.id, 4)]


def test_preempted_work_does_not_begin_again_in_the_same_step() -> None:
    bench = Bench(blocks=4, step_tokens=8)
    first = bench.context(7, generates=True)
    second = bench.context(6, generates=True)
    bench.step()
    bench.step()
    plan = bench.step()
    assert [discard.context for discard in plan.discards] == [second]
    assert shape(plan) == [(first.id, 1)]


def test_nothing_is_thrown_away_for_work_that_does_not_fit_all_the_same() -> None:
    bench = Bench(blocks=8)
    bench.context(14, generates=True)
    bench.step()
    idle = bench.context(8)
    bench.step()
    bench.context(32)
    plan = bench.step()
    assert plan.discards == []
    assert idle.blocks


def test_a_long_context_is_not_read_in_the_background_of_a_short_step() -> None:
    bench = Bench(blocks=4000, step_tokens=64, background=None)
    for _ in range(300):
        for tokens, context_tokens in ((1, 10), (32, 2000), (1, 8000)):
            seconds = 0.010 + 0.0001 * tokens + 1e-5 * context_tokens
            bench.scheduler.step_time.learn(0, tokens, context_tokens, seconds)
    thinking = bench.context(8000, "background")
    thinking.reserve(4000)
    thinking.kv_length = 4000
    answer = bench.context(3, generates=True)
    assert shape(bench.step()) == [(answer.id, 3)]


def test_another_model_in_the_background_pays_for_its_whole_step() -> None:
    bench = Bench(blocks=1000, step_tokens=512, background=None)
    learned(bench, 0.010, 0.001)
    learned(bench, 0.004, 0.001, model=1)
    answer = bench.context(3, generates=True)
    bench.step()
    thinking = Context(50, BlockPool(100, 4), "background", arrival=50, model=1)
    thinking.append([0] * 100)
    bench.contexts.append(thinking)
    plan = bench.scheduler.plan([answer, thinking], list)
    assert shape(plan) == [(answer.id, 1), (thinking.id, 7)]


def test_a_slow_model_in_the_background_of_a_fast_one_gets_a_share_in_the_end() -> None:
    bench = Bench(blocks=1000, step_tokens=512, background=None)
    learned(bench, 0.010, 0.001)
    learned(bench, 0.200, 0.001, model=1)
    answer = bench.context(3, generates=True)
    bench.step()
    thinking = Context(50, BlockPool(100, 4), "background", arrival=50, model=1)
    thinking.append([0] * 100)
    served = [shape(bench.scheduler.plan([answer, thinking], list)) for _ in range(65)]
    assert [(thinking.id, 16) in step for step in served] == [False] * 64 + [True]


def test_the_oldest_gets_the_share_of_the_starving_and_not_the_one_that_decodes() -> None:
    bench = Bench(blocks=4000, step_tokens=16)
    oldest = bench.context(40, "background")
    speaker = bench.context(3, "background", generates=True)
    speaker.arrival = -1
    bench.step()
    speaker.arrival = 1
    assert speaker.is_decoding
    bench.context(16 * 200)
    steps = [shape(bench.step()) for _ in range(65)]
    assert [context for context, _ in steps[64]] == [2, oldest.id]


def test_work_that_is_limited_does_not_starve() -> None:
    bench = Bench(blocks=4000, step_tokens=16, limits=RateLimits(0.0, 4.0, 0.0))
    bench.context(40, "background", payer=1)
    bench.step()
    bench.context(16 * 200)
    for _ in range(100):
        bench.step()
    bench.now += 10
    assert [context for context, _ in shape(bench.step())] == [1]


def test_promotion_keeps_the_place_in_the_queue() -> None:
    bench = Bench(step_tokens=10, background=4)
    promoted = bench.context(20, "background")
    bench.step()
    bench.context(20)
    kept = promoted.kv_length
    promoted.priority = "foreground"
    plan = bench.step()
    assert plan.discards == []
    assert [(w.context.id, w.start, w.count) for w in plan.work] == [(promoted.id, kept, 10)]


def test_a_draft_after_a_prompt_counts_like_a_prompt() -> None:
    bench = Bench(blocks=1000, step_tokens=256)
    learned(bench, 0.010, 0.001)
    bench.context(3, generates=True)
    bench.step()
    sent = bench.context(10, generates=True)
    draft(sent, 200)
    assert [(w.count, len(w.draft)) for w in bench.step().work] == [(1, 0), (10, 200)]


def test_background_drafts_stay_within_what_background_may_use() -> None:
    limits = RateLimits(0.0, 100.0, 0.0)
    bench = Bench(blocks=1000, step_tokens=256, background=8, limits=limits)
    bench.context(3, generates=True)
    thinking = bench.context(3, "background", generates=True, payer=1)
    bench.step()
    bench.step()
    draft(thinking, 100)
    before = limits.available(1, 0.0)
    assert [(w.context.id, w.tokens) for w in bench.step().work] == [(0, 1), (thinking.id, 8)]
    after = limits.available(1, 0.0)
    assert before is not None
    assert after == before - 8


def test_a_step_is_pure_decode_only_without_prompts_and_drafts() -> None:
    bench = Bench()
    assert not Plan().is_pure_decode
    answer = bench.context(3, generates=True)
    assert not bench.step().is_pure_decode
    assert bench.step().is_pure_decode
    draft(answer, 3)
    assert not bench.step().is_pure_decode


@dataclass(frozen=True)
class Job:
    """A context of a random scenario; it is held for ever once it has said `output` tokens."""

    prompt: int
    output: int
    is_background: bool
    model: int
    draft: int
    starts_at: int


JOBS = st.lists(
    st.builds(
        Job,
        prompt=st.integers(1, 20),
        output=st.integers(0, 11),
        is_background=st.booleans(),
        model=st.integers(0, 1),
        draft=st.integers(0, 6),
        starts_at=st.integers(0, 30),
    ),
    min_size=1,
    max_size=10,
)


class Scenario:
    """Two models with small pools; what a job has computed it keeps until somebody takes it."""

    def __init__(self, jobs: list[Job], pools: tuple[int, int], step_tokens: int, background: int | None) -> None:
        self.jobs = jobs
        self.pools = [BlockPool(count, 4) for count in pools]
        self.now = 0.0
        limits = RateLimits(0.0, 40.0, 0.0)
        self.scheduler = Scheduler(
            step_tokens, background_step_tokens=background, limits=limits, clock=lambda: self.now
        )
        self.step_tokens = step_tokens
        self.contexts: list[Context] = []
        for i, job in enumerate(jobs):
            priority: Priority = "background" if job.is_background else "foreground"
            self.contexts.append(Context(i, self.pools[job.model], priority, i, model=job.model, payer=1 + i % 2))

    def start(self, context: Context) -> None:
        job = self.jobs[context.id]
        context.append([0] * job.prompt)
        if job.output:
            length = len(context.tokens)
            context.generation = Generation(1, GenerateParams(99), 99, frozenset(), length, 0, 0.0)
            context.generation.proposal = [1] * job.draft
            context.wants_prefill = False

    def pending(self) -> list[Context]:
        return [context for context in self.contexts if context.pending]

    def step(self) -> Plan:
        pending = self.pending()
        plan = self.scheduler.plan(pending, lambda: [c for c in self.contexts if c.blocks and not c.pending])
        self.check(plan)
        for work in plan.work:
            self.compute(work)
        for index, pool in enumerate(self.pools):
            pool.check_integrity([context.blocks for context in self.contexts if context.model == index])
        return plan

    def check(self, plan: Plan) -> None:
        size = sum(work.tokens for work in plan.work)
        background = [work for work in plan.work if work.context.priority == "background"]
        foreground = [work for work in plan.work if work.context.priority == "foreground"]
        share = background[0].tokens if len(background) == 1 and foreground else 0
        assert size <= self.step_tokens or size - share <= self.step_tokens
        for group in (foreground, background):
            for kind in (True, False):
                arrivals = [work.context.arrival for work in group if work.is_decode is kind]
                assert arrivals == sorted(arrivals)
        preempted = {discard.context for discard in plan.discards}
        assert not preempted & {work.context for work in plan.work}

    def compute(self, work: Work) -> None:
        context, job = work.context, self.jobs[work.context.id]
        context.kv_length = work.start + work.count
        generation = context.generation
        if work.samples and generation is not None:
            said = min(1 + len(work.draft) // 2, job.output - generation.output_tokens)
            context.tokens += [0] * said
            context.kv_length += said - 1
            generation.output_tokens += said
            if generation.output_tokens >= job.output:
                context.generation = None
                context.held = True
                context.trim()
        elif not context.pending:
            context.wants_prefill = False


@settings(max_examples=150, deadline=None)
@given(
    JOBS,
    st.tuples(st.integers(8, 20), st.integers(8, 20)),
    st.integers(1, 24),
    st.one_of(st.none(), st.integers(1, 8)),
)
def test_everything_gets_done_in_order_within_the_budget_and_no_block_is_lost(
    jobs: list[Job], pools: tuple[int, int], step_tokens: int, background: int | None
) -> None:
    scenario = Scenario(jobs, pools, step_tokens, background)
    for number in range(4000):
        for context, job in zip(scenario.contexts, jobs, strict=True):
            if job.starts_at == number:
                scenario.start(context)
        plan = scenario.step()
        wait = scenario.scheduler.wait_seconds(scenario.pending())
        if wait is None and number >= 30:
            break
        assert plan.work or wait != 0, "the loop would spin"
        scenario.now += max(wait or 0.0, 0.01)
    assert not scenario.pending()
    for context, job in zip(scenario.contexts, jobs, strict=True):
        assert len(context.tokens) == job.prompt + job.output
