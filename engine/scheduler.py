"""What the next step computes: iteration-level scheduling with chunked prefill and two priority classes.

Order inside a step: foreground decodes, foreground prefill, then background with what is left; first come, first
served inside each. Background work may lengthen a step that holds foreground work by at most the time of one decode
step, and is limited in tokens a second; when it got nothing for many steps, its oldest work gets one such share.

When blocks run out, KV is discarded from whoever hurts least: idle and held contexts (least recently used first), then
background work, then the latest foreground work. The oldest foreground work may take everything, so something always
moves. Contexts of several models share the plan, each with the pool of its model. No tensors here: a simulator can
run it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from engine.context import BlockCopy, Context
from engine.rate_limit import RateLimits
from engine.step_time import StepTime

_STARVING_STEPS = 64
_SMALLEST_CHUNK = 16
_FIRST_CHUNK = 32
_DRAFT_SHARE = 0.5
_FORGET_EVERY = 1024


@dataclass(frozen=True, slots=True)
class Work:
    """Compute tokens `[start, start + count)` of `context`, then `draft`, after block `copies`; `samples` when next
    tokens are wanted after the last one and after each drafted one."""

    context: Context
    start: int
    count: int
    samples: bool
    is_decode: bool
    copies: Sequence[BlockCopy] = ()
    draft: tuple[int, ...] = ()

    @property
    def tokens(self) -> int:
        return self.count + len(self.draft)


@dataclass(frozen=True, slots=True)
class Discard:
    """KV of `tokens` tokens was given up."""

    context: Context
    tokens: int
    reason: str


@dataclass(slots=True)
class Plan:
    """One step."""

    work: list[Work] = field(default_factory=list)
    discards: list[Discard] = field(default_factory=list)

    @property
    def is_pure_decode(self) -> bool:
        return all(work.is_decode and not work.draft for work in self.work)


class Scheduler:
    """Plans steps of at most `step_tokens` tokens; `background_step_tokens` caps what of them is background."""

    def __init__(
        self,
        step_tokens: int,
        *,
        background_step_tokens: int | None = None,
        limits: RateLimits | None = None,
        clock: Callable[[], float],
    ) -> None:
        self.step_time = StepTime()
        self._step_tokens = step_tokens
        self._background_step_tokens = background_step_tokens
        self._limits = limits or RateLimits(0.0, 0.0, clock())
        self._clock = clock
        self._step = 0
        self._hungry_steps = 0

    def plan(self, pending: Sequence[Context], idle: Callable[[], Iterable[Context]]) -> Plan:
        """The next step for the contexts with pending work; `idle` are all others with KV, whose blocks may be taken.

        Reserves the blocks that its work needs; empty `work` when nothing can be done now.
        """
        self._step += 1
        if self._step % _FORGET_EVERY == 0:
            self._limits.forget_full(self._clock())
        waiting = sorted(pending, key=lambda c: c.arrival)
        foreground = [c for c in waiting if c.priority == "foreground"]
        background = [c for c in waiting if c.priority == "background"]
        plan = Plan()
        step = _Step(plan, waiting, idle, self._step)
        left = self._fill(step, foreground, self._step_tokens)
        if background:
            self._fill_background(step, background, left)
        self._add_drafts(plan, self._step_tokens - sum(work.count for work in plan.work))
        return plan

    def wait_seconds(self, pending: Iterable[Context]) -> float | None:
        """Seconds until some of the pending work may run: 0.0 unless all of it is limited; None: there is none."""
        now = self._clock()
        waits = [
            self._limits.wait(context.payer, now) if context.priority == "background" else 0.0 for context in pending
        ]
        return min(waits, default=None)

    def _fill(self, step: _Step, queue: list[Context], budget: int) -> int:
        """Adds work of one class to the step; returns the budget that is left."""
        prefills = []
        for context in queue:
            if not context.is_decoding:
                prefills.append(context)
            elif budget and context.pending == 1 and step.add(context, 1):
                budget -= 1
        blocked: set[int] = set()
        for context in prefills:
            count = min(context.pending, budget)
            # Nobody overtakes a prefill that waits for blocks, or it could wait for ever.
            if not count or context.model in blocked or not step.add(context, count):
                blocked.add(context.model)
                continue
            budget -= count
        return budget

    def _fill_background(self, step: _Step, queue: list[Context], left: int) -> None:
        shared = bool(step.plan.work)
        starving = self._hungry_steps >= _STARVING_STEPS
        allowance = self._allowance(step.plan.work, queue[0].model)
        budget = allowance if starving else min(allowance, left)
        now = self._clock()
        done = 0
        for context in sorted(queue, key=lambda c: not c.is_decoding):
            available = self._limits.available(context.payer, now)
            count = min(context.pending, budget - done, context.pending if available is None else available)
            if count > 0 and step.add(context, count):
                self._limits.charge(context.payer, count, now)
                done += count
        self._hungry_steps = 0 if done or not shared else self._hungry_steps + 1

    def _allowance(self, work: Sequence[Work], model: int) -> int:
        """Background tokens that lengthen a step with foreground work by one decode step, or that make a step of
        background work alone, for which a Send would have to wait, last about two."""
        time = self.step_time
        if work:
            decodes = sum(1 for w in work if w.is_decode)
            allowance = time.tokens_within(model, time.predict(model, max(decodes, 1)))
        else:
            allowance = max(time.tokens_within(model, time.predict(model, 1)), _SMALLEST_CHUNK)
        cap = self._background_step_tokens
        return allowance if cap is None else min(allowance, cap)

    def _add_drafts(self, plan: Plan, left: int) -> None:
        """Guesses are a gamble: where others share the step, all of them together may lengthen it by half only, and
        they never take blocks from anybody."""
        seconds: dict[int, float] = {}
        for i, work in enumerate(plan.work):
            generation = work.context.generation
            if not work.samples or generation is None or not generation.proposal:
                continue
            model = work.context.model
            length = min(len(generation.proposal), left)
            if len(plan.work) > 1:
                if model not in seconds:
                    tokens = sum(w.count for w in plan.work if w.context.model == model)
                    seconds[model] = _DRAFT_SHARE * self.step_time.predict(model, tokens)
                length = min(length, self.step_time.tokens_within(model, seconds[model]))
            while length and work.context.blocks_needed(work.count + length) > work.context.pool.free_count:
                length //= 2
            if length:
                copies = [*work.copies, *work.context.reserve(work.count + length)]
                plan.work[i] = Work(
                    work.context,
                    work.start,
                    work.count,
                    True,
                    work.is_decode,
                    copies,
                    tuple(generation.proposal[:length]),
                )
                left -= length
                if len(plan.work) > 1:
                    seconds[model] -= self.step_time.predict(model, length) - self.step_time.predict(model, 0)


@dataclass(slots=True)
class _Step:
    """The plan in the making."""

    plan: Plan
    waiting: list[Context]
    idle: Callable[[], Iterable[Context]]
    number: int

    def add(self, context: Context, count: int) -> bool:
        """Adds work, discarding KV of others if it must; False when there are not enough blocks all the same."""
        pool = context.pool
        if context.blocks_needed(count) > pool.free_count:
            victims = self._victims(context)
            while context.blocks_needed(count) > pool.free_count:
                victim = next(victims, None)
                if victim is None:
                    return False
                self._discard(victim)
        copies = context.reserve(count)
        samples = context.generation is not None and context.generation.ready and count == context.pending
        work = Work(context, context.kv_length, count, samples, context.is_decoding, copies)
        self.plan.work.append(work)
        context.last_used = self.number
        return True

    def _discard(self, victim: Context) -> None:
        reason = "preempted" if victim.pending else "memory pressure"
        if not victim.pending:
            victim.wants_prefill = False
        self.plan.discards.append(Discard(victim, victim.drop_kv(), reason))

    def _victims(self, context: Context) -> Iterator[Context]:
        """Contexts whose KV may be taken for `context`, cheapest loss first."""
        planned = {work.context for work in self.plan.work}

        def can_give(other: Context) -> bool:
            return other.pool is context.pool and bool(other.blocks) and other is not context and other not in planned

        yield from sorted(filter(can_give, self.idle()), key=lambda c: c.last_used)
        running = filter(can_give, self.waiting)
        for victim in sorted(running, key=lambda c: (c.priority == "background", c.arrival), reverse=True):
            outranked = victim.priority == "background" and context.priority == "foreground"
            same_class_later = victim.priority == context.priority and victim.arrival > context.arrival
            if outranked or same_class_later:
                yield victim
