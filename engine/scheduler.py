"""What the next step computes: iteration-level scheduling with chunked prefill and two priority classes.

Order inside a step: foreground decodes, foreground prefill, then background with what is left; first come, first
served inside each. Background work may lengthen a step that holds foreground work by at most the time of one decode
step, and is limited in tokens a second; when it got nothing for many steps, its oldest work gets one such share.

When blocks run out, KV is taken from whoever hurts least: idle contexts (least recently used first), held ones (as
their policy says), contexts that ended just now and may be about to be held, then background work, then the latest
foreground work. It is moved to the host if that is the better way, else dropped. The oldest foreground work may take
everything, so something always moves. Contexts of several models share the plan, each with the pool of its model. No
tensors here: a simulator can run it.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Protocol

from engine.context import BlockCopy, Context
from engine.rate_limit import RateLimits
from engine.step_time import StepTime

_STARVING_STEPS = 64
_SMALLEST_CHUNK = 16
_DRAFT_SHARE = 0.5
_FORGET_EVERY = 1024
_FRESH_STEPS = 2
_RANK = attrgetter("arrival", "id")


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

    @property
    def context_tokens(self) -> int:
        """The length of the sequence after it, all of which attention reads."""
        return self.start + self.tokens


@dataclass(frozen=True, slots=True)
class Discard:
    """KV of `tokens` tokens was given up."""

    context: Context
    tokens: int
    reason: str


class Reserve(Protocol):
    """KV of one model that is held for contexts without work, or lies on the host. Amounts are blocks."""

    def restore(self, context: Context, blocks: int) -> int:
        """Begins to bring up to `blocks` free blocks of a context back; returns how many the link has room for."""
        ...

    def restorable(self, context: Context) -> int:
        """How many `restore` would bring back, if there were free blocks."""
        ...

    def reclaimable(self) -> int:
        """How many could be given up."""
        ...

    def reclaim(self, blocks: int) -> list[Discard]:
        """Gives at least `blocks` up, if there are so many, those that are `leaving` included."""
        ...

    def leaving(self) -> int:
        """How many blocks are on their way to the host, and free after that."""
        ...

    def preempt(self, context: Context) -> bool:
        """Begins to move a context to the host that runs or is idle, if that is better than to drop its KV."""
        ...


@dataclass(slots=True)
class Plan:
    """One step. `starved` are, by model, the blocks that work needs which did not get them; `moved` contexts had to
    make room and are on their way to the host."""

    work: list[Work] = field(default_factory=list)
    discards: list[Discard] = field(default_factory=list)
    starved: dict[int, int] = field(default_factory=dict)
    moved: int = 0

    @property
    def is_pure_decode(self) -> bool:
        """Whether it is one token for each of some generations."""
        return bool(self.work) and all(work.is_decode and not work.draft for work in self.work)


@dataclass(slots=True)
class _Room:
    """What background work may still add to the step."""

    seconds: float
    tokens: int
    least: int = 0
    """Tokens that it may add however long they take."""


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
        self._background_step_tokens = step_tokens if background_step_tokens is None else background_step_tokens
        self._limits = limits or RateLimits(0.0, 0.0, clock())
        self._clock = clock
        self._steps = 0
        self._hungry_steps = 0
        self._stuck: frozenset[Context] = frozenset()
        self._first_starved: dict[int, _Precedence] = {}

    def plan(
        self,
        pending: Sequence[Context],
        idle: Callable[[], Iterable[Context]],
        held: Mapping[int, Reserve] | None = None,
    ) -> Plan:
        """The next step for the contexts with pending work; `idle` are others with KV, whose blocks may be taken, and
        `held`, by model, has those that a policy decides on.

        Reserves the blocks that its work needs; empty `work` when nothing can be done now. Exceeds `step_tokens` only
        by the share of a starving background context.
        """
        self._steps += 1
        if self._steps % _FORGET_EVERY == 0:
            self._limits.forget_full(self._clock())
        waiting = sorted(pending, key=_RANK)
        step = _Step(waiting, idle, held or {}, self._steps, self._step_tokens)
        foreground, background = _queues(waiting)
        _restore(step, waiting, self._first_starved)
        self._fill_foreground(step, foreground)
        rooms = self._fill_background(step, background) if background else {}
        self._add_drafts(step, rooms)
        self._stuck = frozenset() if step.work else frozenset(waiting)
        self._first_starved = step.first_starved
        return Plan(list(step.work.values()), step.discards, step.starved, step.moved)

    def wait_seconds(self, pending: Iterable[Context], is_moving: bool = False) -> float | None:
        """Seconds until some of the pending work may run: 0.0 unless all of it is limited, or waits for blocks that
        limited work has; infinite if it waits for blocks and moves are under way; None: there is none."""
        now = self._clock()
        limited = math.inf
        any_pending = False
        for context in pending:
            any_pending = True
            wait = self._limits.wait(context.payer, now) if context.priority == "background" else 0.0
            if not wait and context not in self._stuck:
                return 0.0
            limited = min(limited, wait or math.inf)
        if not any_pending:
            return None
        return limited if limited < math.inf or is_moving else 0.0

    def _fill_foreground(self, step: _Step, queue: Sequence[Context]) -> None:
        # No later work overtakes what waits for blocks, or it could wait for ever.
        blocked: dict[int, Context] = {}
        for context in queue:
            if not step.left:
                break
            first = blocked.get(context.model)
            if first is not None and _RANK(first) < _RANK(context):
                continue
            if context in step.preempted or not step.add(context, min(context.pending, step.left)):
                blocked[context.model] = context

    def _fill_background(self, step: _Step, queue: Sequence[Context]) -> dict[int, _Room]:
        """Returns by model what room is left."""
        now = self._clock()
        queue = [context for context in queue if self._available(context, now)]
        shared = bool(step.work)
        rooms = self._rooms(step, queue, shared)
        if shared and queue and self._hungry_steps >= _STARVING_STEPS:
            done = self._feed(step, min(queue, key=_RANK), rooms, now)
        else:
            done = self._share_out(step, queue, rooms, now)
        if done:
            self._hungry_steps = 0
        elif shared and queue:
            self._hungry_steps += 1
        return rooms

    def _feed(self, step: _Step, starving: Context, rooms: dict[int, _Room], now: float) -> int:
        """One share on top of the tokens of the step."""
        left, room = step.left, rooms[starving.model]
        room.least = _SMALLEST_CHUNK
        step.left = max(self._affordable(step, starving, room), room.least)
        done = self._share_out(step, [starving], rooms, now)
        step.left = min(left, step.left)
        return done

    def _share_out(self, step: _Step, queue: Iterable[Context], rooms: dict[int, _Room], now: float) -> int:
        """Adds background work in order; returns how many tokens."""
        done = 0
        for context in queue:
            if not step.left:
                break
            room = rooms[context.model]
            count = min(context.pending, step.left, room.tokens, self._available(context, now))
            count = min(count, max(self._affordable(step, context, room), room.least))
            joins = context.model in step.models
            if count > 0 and context not in step.preempted and step.add(context, count):
                self._spend(context, count, room, joins, now)
                done += count
        return done

    def _rooms(self, step: _Step, queue: Sequence[Context], shared: bool) -> dict[int, _Room]:
        """A step with foreground work may become longer by one decode step of what is in it. Without, for each model,
        it may last for about two, because that is what a Send has to wait for."""
        tokens = self._background_step_tokens
        if shared:
            room = _Room(sum(self._decode_seconds(step, model) for model in step.models), tokens)
            return {context.model: room for context in queue}
        rooms: dict[int, _Room] = {}
        for context in queue:
            if context.model not in rooms:
                seconds = 2 * self.step_time.predict(context.model, 1, context.kv_length)
                rooms[context.model] = _Room(seconds, tokens, _SMALLEST_CHUNK)
        return rooms

    def _decode_seconds(self, step: _Step, model: int) -> float:
        decodes = [w for w in step.work.values() if w.is_decode and w.context.model == model]
        return self.step_time.predict(model, max(len(decodes), 1), sum(w.context_tokens for w in decodes))

    def _affordable(self, step: _Step, context: Context, room: _Room) -> int:
        joins = context.model in step.models
        return self.step_time.tokens_within(context.model, room.seconds, context.kv_length, joins=joins)

    def _available(self, context: Context, now: float) -> int:
        available = self._limits.available(context.payer, now)
        return self._step_tokens if available is None else available

    def _spend(self, context: Context, tokens: int, room: _Room, joins: bool, now: float) -> None:
        self._limits.charge(context.payer, tokens, now)
        room.seconds -= self.step_time.extra(context.model, tokens, context.kv_length, joins=joins)
        room.tokens -= tokens
        room.least = max(room.least - tokens, 0)

    def _add_drafts(self, step: _Step, rooms: dict[int, _Room]) -> None:
        """A guess is a gamble: it never takes blocks from anybody, and where several share the step, all of them
        together may lengthen it by half only. A draft to be verified after a prompt is as good as a prompt."""
        drafted = [work for work in step.work.values() if work.samples and _proposal(work)]
        if not drafted:
            return
        crowded = sum(1 for work in step.work.values() if work.context.priority == "foreground") > 1
        gambling = sum(1 for work in drafted if work.is_decode and work.context.priority == "foreground")
        pot = _DRAFT_SHARE * sum(self.step_time.predict(model, *step.load(model)) for model in step.models)
        now = self._clock()
        for work in drafted:
            context = work.context
            length = min(len(_proposal(work)), step.left)
            if context.priority == "background":
                room = rooms[context.model]
                affordable = self.step_time.tokens_within(context.model, room.seconds, joins=True)
                length = step.add_draft(work, min(length, affordable, room.tokens, self._available(context, now)))
                self._spend_draft(context, length, room, now)
            elif crowded and work.is_decode:
                within = self.step_time.tokens_within(context.model, pot / gambling, joins=True)
                length = step.add_draft(work, min(length, within))
                pot -= self.step_time.extra(context.model, length, joins=True)
                gambling -= 1
            else:
                step.add_draft(work, length)

    def _spend_draft(self, context: Context, tokens: int, room: _Room, now: float) -> None:
        self._limits.charge(context.payer, tokens, now)
        room.seconds -= self.step_time.extra(context.model, tokens, joins=True)
        room.tokens -= tokens


class _Step:
    """The step in the making: its work, and the tokens that are left."""

    def __init__(
        self,
        waiting: Sequence[Context],
        idle: Callable[[], Iterable[Context]],
        held: Mapping[int, Reserve],
        number: int,
        left: int,
    ) -> None:
        self.waiting = waiting
        self.held = held
        self.starved: dict[int, int] = {}
        self.first_starved: dict[int, _Precedence] = {}
        self.moved = 0
        self.work: dict[Context, Work] = {}
        self.discards: list[Discard] = []
        self.models: set[int] = set()
        self.preempted: set[Context] = set()
        self.left = left
        self._idle = idle
        self._number = number

    def load(self, model: int) -> tuple[int, int]:
        """Tokens and context tokens of a model's work."""
        work = [w for w in self.work.values() if w.context.model == model]
        return sum(w.tokens for w in work), sum(w.context_tokens for w in work)

    def add(self, context: Context, count: int) -> bool:
        """Adds work, discarding KV of others if it must; False when there are not enough blocks all the same."""
        if not self._make_room(context, lambda: context.blocks_needed(count)):
            return False
        copies = context.reserve(count)
        is_last = context.kv_length + count == len(context.tokens)
        samples = context.generation is not None and context.generation.ready and is_last
        self.work[context] = Work(context, context.kv_length, count, samples, context.is_decoding, copies)
        self.models.add(context.model)
        self.left -= count
        context.last_used = self._number
        return True

    def add_draft(self, work: Work, length: int) -> int:
        """Lets up to `length` proposed tokens follow `work`, as far as free blocks reach; returns how many."""
        context = work.context
        while length > 0 and context.blocks_needed(work.count + length) > context.pool.free_count:
            length //= 2
        if length <= 0:
            return 0
        copies = [*work.copies, *context.reserve(work.count + length)]
        draft = tuple(_proposal(work)[:length])
        self.work[context] = Work(context, work.start, work.count, True, work.is_decode, copies, draft)
        self.left -= length
        return length

    def restore(self, context: Context) -> bool:
        """Begins to bring KV back from the host, making room like `add`; False when there is not enough."""
        reserve = self.held.get(context.model)
        blocks = reserve.restorable(context) if reserve is not None else 0
        if reserve is None or not blocks:
            return True
        if not self._make_room(context, lambda: blocks):
            return False
        reserve.restore(context, blocks)
        context.last_used = self._number
        return True

    def _make_room(self, context: Context, needed: Callable[[], int]) -> bool:
        pool = context.pool
        if needed() <= pool.free_count:
            return True
        reserve = self.held.get(context.model)

        def left() -> int:
            return pool.free_count + (reserve.leaving() if reserve is not None else 0)

        if needed() > left() and not self._take(context, needed, left, reserve):
            self._starve(context, needed())
            return False
        if needed() <= pool.free_count:
            return True
        self._starve(context, needed())
        return False

    def _take(
        self, context: Context, needed: Callable[[], int], left: Callable[[], int], reserve: Reserve | None
    ) -> bool:
        """Takes KV from others until `needed` blocks are `left`; False when there is too little to take."""
        rested, fresh = self._idle_victims(context)
        running = list(self._running_victims(context))
        # One less may do: a block that is shared with a victim will not have to be copied.
        obtainable = left() + len({block for victim in rested + fresh + running for block in victim.device_blocks}) + 1
        obtainable += reserve.reclaimable() if reserve is not None else 0
        if needed() > obtainable:
            return False
        for victim in rested:
            if needed() <= left():
                return True
            self._preempt(victim, reserve)
        if reserve is not None and needed() > left():
            self.discards += reserve.reclaim(needed() - context.pool.free_count)
        for victim in fresh + running:
            if needed() <= left():
                break
            self._preempt(victim, reserve)
        return True

    def _starve(self, context: Context, needed: int) -> None:
        model, precedence = context.model, _precedence(context)
        self.starved[model] = self.starved.get(model, 0) + needed
        self.first_starved[model] = min(self.first_starved.get(model, precedence), precedence)

    def _preempt(self, victim: Context, reserve: Reserve | None) -> None:
        """Takes its KV away: what is moved is free after that, what is dropped at once."""
        if victim.is_leaving and not victim.private_blocks:
            return
        planned = self.work.get(victim)
        # Copies that are not made any more would leave a block without its contents.
        is_whole = planned is None or not planned.copies
        if reserve is None or not is_whole or not reserve.preempt(victim):
            self._discard(victim)
        elif victim.wants_kv:
            self._unplan(victim)
            self.preempted.add(victim)
            self.moved += 1

    def _unplan(self, victim: Context) -> None:
        planned = self.work.pop(victim, None)
        if planned is not None:
            self.left += planned.count

    def _discard(self, victim: Context) -> None:
        self._unplan(victim)
        reason = "preempted" if victim.wants_kv else "memory pressure"
        if victim.wants_kv:
            self.preempted.add(victim)
        else:
            victim.wants_prefill = False
        self.discards.append(Discard(victim, victim.drop_device_kv(), reason))

    def _idle_victims(self, context: Context) -> tuple[list[Context], list[Context]]:
        """The least recently used first, and apart from them those that ended just now."""
        idle = [other for other in self._idle() if other.pool is context.pool and other.device_blocks]
        idle.sort(key=attrgetter("last_used"))
        first_fresh = bisect_left(idle, self._number - _FRESH_STEPS, key=attrgetter("last_used"))
        return idle[:first_fresh], idle[first_fresh:]

    def _running_victims(self, context: Context) -> Iterator[Context]:
        """Contexts whose KV may be taken for `context`, cheapest loss first: also of later work that is planned."""
        pool = context.pool
        running = [c for c in self.waiting if c.pool is pool and c.device_blocks and c is not context]
        for victim in sorted(running, key=lambda c: (c.priority == "background", _RANK(c)), reverse=True):
            outranked = victim.priority == "background" and context.priority == "foreground"
            same_class_later = victim.priority == context.priority and _RANK(victim) > _RANK(context)
            if outranked or same_class_later:
                yield victim


_Precedence = tuple[bool, int, int]


def _precedence(context: Context) -> _Precedence:
    return context.priority == "background", context.arrival, context.id


def _restore(step: _Step, waiting: Sequence[Context], first_starved: Mapping[int, _Precedence]) -> None:
    """Brings KV back from the host for contexts that go on, first come, first served; those behind one that starved in
    the last step would take from it what has become free since."""
    blocked: set[int] = set()
    for context in waiting:
        if not context.parked or context.held or context.model in blocked:
            continue
        first = first_starved.get(context.model)
        if first is not None and first < _precedence(context):
            continue
        if not step.restore(context):
            blocked.add(context.model)


def _queues(waiting: Iterable[Context]) -> tuple[list[Context], list[Context]]:
    """Foreground and background, decodes first."""
    foreground: tuple[list[Context], list[Context]] = ([], [])
    background: tuple[list[Context], list[Context]] = ([], [])
    for context in waiting:
        if not context.pending:
            continue
        queues = foreground if context.priority == "foreground" else background
        queues[not context.is_decoding].append(context)
    return foreground[0] + foreground[1], background[0] + background[1]


def _proposal(work: Work) -> list[int]:
    generation = work.context.generation
    return generation.proposal if generation is not None else []
