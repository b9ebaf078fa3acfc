"""Blocks on the move between two tiers, in the background: device and host memory, or host memory and files.

A move takes no part in steps. Blocks that move out may be read but not written until it has ended, those that are moved
into neither; so no step waits for a move, and how much may move at once for free is the caller's budget (N_i of
InferCept, section 4.1: what the link carries during a step). Moving out does not take the block from the device: who
keeps it has written it through, and can drop it later without another move.

The link between the tiers can be *modelled*: no faster than so many bytes a second, one move after another, both
directions on one link as in InferCept's constraint (a). What is measured then is the model's, and `SwapStats` says so.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from engine.kv.slots import SlotPool

Direction = Literal["out", "in"]
Pair = tuple[int, int]
"""(block of the upper tier, slot of the lower tier)."""

_Place = tuple[Literal["block", "slot"], int]

# Who slept for as long as it was told may find the clock this short of it.
_ROUNDING_S = 1e-6


class SwapQueueFull(Exception):
    """As many moves are under way as may be."""


@dataclass(slots=True, eq=False)
class Ticket:
    """A move. Times are the clock's; the link serves it from `begins_at` to `ready_at`.

    `done`: all of it has arrived. `failed` and `cancelled`: nobody knows what has, so the targets hold nothing; the
    sources are what they were.
    """

    number: int
    direction: Direction
    pairs: tuple[Pair, ...]
    bytes: int
    started_at: float
    begins_at: float = math.inf
    ready_at: float = math.inf
    cancelled: bool = False
    state: Literal["moving", "done", "failed", "cancelled"] = "moving"
    error: str = ""

    def places(self) -> tuple[list[_Place], list[_Place]]:
        """What it reads and what it writes."""
        blocks: list[_Place] = [("block", block) for block, _ in self.pairs]
        slots: list[_Place] = [("slot", slot) for _, slot in self.pairs]
        return (blocks, slots) if self.direction == "out" else (slots, blocks)


@dataclass(slots=True)
class Traffic:
    """Of moves that were done; `seconds` are the link's, without waiting for it: bytes / seconds is its throughput."""

    bytes: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class SwapStats:
    """Since the start. `modelled`: the throughput is at most the model's; else it is that of the real copies."""

    modelled: bool
    outward: Traffic = field(default_factory=Traffic)
    inward: Traffic = field(default_factory=Traffic)
    done: int = 0
    failed: int = 0
    cancelled: int = 0


class Copier(Protocol):
    """What does the copying. Waits in `synchronize` and `close` only."""

    poll_s: float
    """How long to wait until it is worth another look whether a copy is over."""

    def start(self, ticket: Ticket) -> None:
        """Begins a copy, or queues it."""
        ...

    def cancel(self, ticket: Ticket) -> None:
        """Leaves a copy out if it has not begun; it then is over."""
        ...

    def seconds(self, ticket: Ticket) -> float | None:
        """How long a copy took, and forgets it; None until it is over. Raises what it failed with."""
        ...

    def synchronize(self) -> None:
        """Waits until all copies are over."""
        ...

    def close(self) -> None:
        """Like `synchronize`, and gives back what it has; only `seconds` may follow."""
        ...


class SimulatedCopier:
    """Moves nothing and takes no time: for a simulator, whose link is modelled and whose tiers are numbers."""

    poll_s = 0.0

    def start(self, ticket: Ticket) -> None:
        """See `Copier`, as for the others."""

    def cancel(self, ticket: Ticket) -> None: ...

    def seconds(self, ticket: Ticket) -> float | None:
        return 0.0

    def synchronize(self) -> None: ...

    def close(self) -> None: ...


class Swapper:
    """Moves between `blocks` blocks and `slots`, all of `block_bytes`. Not thread-safe.

    A move holds a reference to its slots. Its blocks are the caller's to hold until `poll` has returned the ticket.
    `gbps`, 10^9 bytes a second, is what the modelled link carries; None: the copies are as fast as they are.
    """

    def __init__(
        self,
        slots: SlotPool,
        copier: Copier,
        blocks: int,
        block_bytes: int,
        *,
        gbps: float | None,
        clock: Callable[[], float],
        most_moves: int = 64,
    ) -> None:
        if gbps is not None and not gbps > 0:
            raise ValueError(f"a link of {gbps} GB/s")
        self.slots = slots
        self.block_bytes = block_bytes
        self.gbps = gbps
        self.stats = SwapStats(modelled=gbps is not None)
        self._copier = copier
        self._blocks = blocks
        self._seconds_per_byte = 1e-9 / gbps if gbps is not None else 0.0
        self._clock = clock
        self._most_moves = most_moves
        self._moving: list[Ticket] = []
        self._reads: Counter[_Place] = Counter()
        self._writes: set[_Place] = set()
        self._last_number = 0
        self._closed = False

    @property
    def moving(self) -> Sequence[Ticket]:
        """The moves under way, in the order of their start."""
        return tuple(self._moving)

    @property
    def room(self) -> int:
        """How many more moves may be started now."""
        return self._most_moves - len(self._moving)

    def start_out(self, pairs: Sequence[Pair]) -> Ticket:
        """Begins to copy blocks to slots that the caller has allocated.

        Raises `SwapQueueFull`, or `ValueError` for what cannot move or is the target of another move; then nothing has
        changed. A copy that cannot begin is a ticket that fails.
        """
        return self._start("out", pairs)

    def start_in(self, pairs: Sequence[Pair]) -> Ticket:
        """Begins to copy slots to blocks; the slots keep what they hold. Raises like `start_out`."""
        return self._start("in", pairs)

    def cancel(self, ticket: Ticket) -> None:
        """Takes a move back. It still ends by `poll`: at once if its copy has not begun, else after that."""
        if ticket.state == "moving" and not ticket.cancelled:
            ticket.cancelled = True
            self._copier.cancel(ticket)
            self._schedule(self._clock())

    def poll(self) -> list[Ticket]:
        """The moves that have ended since the last call, in the order of their start."""
        now = self._clock()
        ended = [ticket for ticket in self._moving if self._end(ticket, now)]
        if ended:
            self._moving = [ticket for ticket in self._moving if ticket.state == "moving"]
        return ended

    def wait_seconds(self) -> float:
        """How long until `poll` may return something; infinite when nothing moves."""
        now = self._clock()
        return max(min((t.ready_at - now for t in self._moving), default=math.inf), self._copier.poll_s)

    def synchronize(self) -> None:
        """Waits until no memory is being read or written; a modelled link may be busy for longer."""
        self._copier.synchronize()

    def close(self) -> None:
        """Cancels all moves and waits for copies that have begun; `poll` then returns the rest. For whoever is about
        to give back the memory of a tier."""
        if self._closed:
            return
        self._closed = True
        for ticket in self._moving:
            self.cancel(ticket)
        self._copier.close()
        for ticket in self._moving:
            ticket.ready_at = -math.inf

    def check_integrity(self) -> None:
        """Asserts that nothing that is being written is in another move, and that moves hold their slots."""
        reads: Counter[_Place] = Counter()
        writes: Counter[_Place] = Counter()
        for ticket in self._moving:
            sources, targets = ticket.places()
            reads.update(sources)
            writes.update(targets)
            assert all(self.slots.is_used(slot) for _, slot in ticket.pairs), "a slot on the move is free"
        assert reads == self._reads, "sources differ from moves"
        assert writes == Counter(self._writes), "targets differ from moves"
        assert not writes & reads, "a target is in another move"

    def _start(self, direction: Direction, pairs: Sequence[Pair]) -> Ticket:
        if self._closed:
            raise RuntimeError("the swapper is closed")
        if self.room <= 0:
            raise SwapQueueFull(f"{len(self._moving)} moves are under way")
        now = self._clock()
        ticket = Ticket(self._last_number + 1, direction, tuple(pairs), len(pairs) * self.block_bytes, now)
        sources, targets = ticket.places()
        self._check(ticket.pairs, sources, targets)
        self._last_number += 1
        self._reads.update(sources)
        self._writes.update(targets)
        self.slots.share(slot for _, slot in pairs)
        self._moving.append(ticket)
        self._schedule(now)
        try:
            self._copier.start(ticket)
        except Exception as error:
            ticket.error = _describe(error)
            ticket.begins_at = ticket.ready_at = now
        return ticket

    def _check(self, pairs: Sequence[Pair], sources: Sequence[_Place], targets: Sequence[_Place]) -> None:
        if not pairs:
            raise ValueError("nothing to move")
        for block, slot in pairs:
            if not 0 <= block < self._blocks:
                raise ValueError(f"block {block} is not one of {self._blocks}")
            if not self.slots.is_used(slot):
                raise ValueError(f"slot {slot} is not allocated")
        if len(set(targets)) < len(targets):
            raise ValueError("one target for two moves")
        for kind, index in targets:
            if (kind, index) in self._writes or self._reads[kind, index]:
                raise ValueError(f"{kind} {index} is in another move")
        for kind, index in sources:
            if (kind, index) in self._writes:
                raise ValueError(f"{kind} {index} has not arrived yet")

    def _schedule(self, now: float) -> None:
        """Gives the moves that the link has not begun with their turns; cancelled ones need none."""
        free = -math.inf
        for ticket in self._moving:
            if ticket.begins_at > now:
                seconds = 0.0 if ticket.cancelled else ticket.bytes * self._seconds_per_byte
                ticket.begins_at = ticket.started_at if ticket.cancelled else max(free, ticket.started_at)
                ticket.ready_at = ticket.begins_at + seconds
            free = max(free, ticket.ready_at)

    def _end(self, ticket: Ticket, now: float) -> bool:
        """Whether a move has ended; if so, counts it and lets go of what it held."""
        if now + _ROUNDING_S < ticket.ready_at:
            return False
        seconds: float | None = 0.0
        if not ticket.error:
            try:
                seconds = self._copier.seconds(ticket)
            except Exception as error:
                ticket.error = _describe(error)
        if seconds is None:
            return False
        sources, targets = ticket.places()
        self._reads -= Counter(sources)
        self._writes.difference_update(targets)
        self.slots.release(slot for _, slot in ticket.pairs)
        self._count(ticket, max(seconds, ticket.bytes * self._seconds_per_byte))
        return True

    def _count(self, ticket: Ticket, seconds: float) -> None:
        stats = self.stats
        if ticket.error:
            ticket.state = "failed"
            stats.failed += 1
        elif ticket.cancelled:
            ticket.state = "cancelled"
            stats.cancelled += 1
        else:
            ticket.state = "done"
            stats.done += 1
            traffic = stats.outward if ticket.direction == "out" else stats.inward
            traffic.bytes += ticket.bytes
            traffic.seconds += seconds


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
