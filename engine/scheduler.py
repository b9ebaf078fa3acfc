"""What the next step computes: iteration-level scheduling with chunked prefill and two priority classes.

Order inside a step: foreground decodes, foreground prefill, then background (decodes, prefill) within its own small
allowance; first come, first served inside each. When blocks run out, KV is discarded from whoever hurts least:
idle and held contexts (least recently used first), then background work, then the latest foreground work. The oldest
work of the highest class may take everything, so something always moves. No tensors here: a simulator can run it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from engine.context import BlockCopy, Context
from engine.kv.blocks import BlockPool


@dataclass(frozen=True, slots=True)
class Work:
    """Compute tokens `[start, start + count)` of `context`; `samples` when a next token is wanted after them."""

    context: Context
    start: int
    count: int
    samples: bool
    is_decode: bool


@dataclass(frozen=True, slots=True)
class Discard:
    """KV of `tokens` tokens was given up."""

    context: Context
    tokens: int
    reason: str


@dataclass(slots=True)
class Plan:
    """One step: `copies` come before any write of `work`."""

    work: list[Work] = field(default_factory=list)
    copies: list[BlockCopy] = field(default_factory=list)
    discards: list[Discard] = field(default_factory=list)


class Scheduler:
    """Plans steps of at most `step_tokens` tokens, of which at most `background_step_tokens` are background."""

    def __init__(self, pool: BlockPool, step_tokens: int, background_step_tokens: int) -> None:
        self._pool = pool
        self._step_tokens = step_tokens
        self._background_step_tokens = background_step_tokens
        self._step = 0

    def plan(self, contexts: Iterable[Context]) -> Plan:
        """The next step. Reserves the blocks that its work needs; empty `work` when nothing is to be done."""
        self._step += 1
        everything = list(contexts)
        waiting = sorted((c for c in everything if c.pending), key=lambda c: c.arrival)
        plan = Plan()
        foreground = [c for c in waiting if c.priority == "foreground"]
        background = [c for c in waiting if c.priority == "background"]
        left = self._fill(plan, foreground, everything, self._step_tokens)
        self._fill(plan, background, everything, min(left, self._background_step_tokens))
        return plan

    def _fill(self, plan: Plan, queue: list[Context], everything: list[Context], budget: int) -> int:
        """Adds work of one class to the plan; returns the budget that is left."""
        decodes = [c for c in queue if c.is_decoding]
        prefills = [c for c in queue if not c.is_decoding]
        for context in decodes:
            if budget and context.pending == 1 and self._add(plan, context, 1, everything):
                budget -= 1
        for context in prefills:
            count = min(context.pending, budget)
            # Nobody overtakes a prefill that waits for blocks, or it could wait for ever.
            if not count or not self._add(plan, context, count, everything):
                break
            budget -= count
        return budget

    def _add(self, plan: Plan, context: Context, count: int, everything: list[Context]) -> bool:
        victims = self._victims(plan, context, everything)
        while context.blocks_needed(count) > self._pool.free_count:
            victim = next(victims, None)
            if victim is None:
                return False
            reason = "preempted" if victim.pending else "memory pressure"
            if not victim.pending:
                victim.wants_prefill = False
            plan.discards.append(Discard(victim, victim.drop_kv(), reason))
        plan.copies += context.reserve(count)
        samples = context.generation is not None and count == context.pending
        plan.work.append(Work(context, context.kv_length, count, samples, context.is_decoding))
        context.last_used = self._step
        return True

    def _victims(self, plan: Plan, context: Context, everything: list[Context]) -> Iterator[Context]:
        """Contexts whose KV may be taken for `context`, cheapest loss first."""
        planned = {work.context for work in plan.work}
        others = [c for c in everything if c.blocks and c is not context and c not in planned]
        yield from sorted((c for c in others if not c.pending), key=lambda c: c.last_used)
        running = [c for c in others if c.pending]
        latest_first = sorted(running, key=lambda c: (c.priority == "background", c.arrival), reverse=True)
        for victim in latest_first:
            outranked = victim.priority == "background" and context.priority == "foreground"
            same_class_later = victim.priority == context.priority and victim.arrival > context.arrival
            if outranked or same_class_later:
                yield victim
