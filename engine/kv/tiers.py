"""The tiers of one model's KV, device and host, and the moves of contexts' blocks between them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from engine.context import Context
from engine.kv.blocks import BlockPool
from engine.kv.parked import Place
from engine.kv.swap import Direction, Swapper, Ticket

_ASSUMED_GBPS = 10.0


@dataclass(frozen=True, slots=True, eq=False)
class _Move:
    """One block of a context. The move holds a reference to `block` until it has ended, and to `slot` on its way out.
    The context still wants what it brings while it is `place.move`."""

    context: Context
    index: int
    place: Place
    block: int
    slot: int


class Tiers:
    """Without `swapper` there is the device only. Amounts are blocks."""

    def __init__(self, pool: BlockPool, swapper: Swapper | None = None) -> None:
        self.pool = pool
        self.swapper = swapper
        self._moves: dict[Ticket, list[_Move]] = {}

    @property
    def host_free(self) -> int:
        """How many blocks may be moved out before the host is full."""
        return self.pool.host.free_count if self.swapper is not None else 0

    @property
    def can_start(self) -> bool:
        """Whether one more move may be started."""
        return self.swapper is not None and self.swapper.room > 0

    @property
    def is_moving(self) -> bool:
        """Whether any move is under way."""
        return bool(self._moves)

    def moving(self, direction: Direction) -> int:
        """Blocks on their way `out` or `in`."""
        return sum(len(moves) for ticket, moves in self._moves.items() if ticket.direction == direction)

    @property
    def seconds_per_block(self) -> float:
        """T_swap: of one block one way, by the model of the link or by what was measured; infinite without a host."""
        if self.swapper is None:
            return math.inf
        outward, inward = self.swapper.stats.outward, self.swapper.stats.inward
        copied = outward.bytes + inward.bytes
        if not copied:
            return self.swapper.block_bytes * 1e-9 / (self.swapper.gbps or _ASSUMED_GBPS)
        return self.swapper.block_bytes * (outward.seconds + inward.seconds) / copied

    def move_out(self, context: Context, indices: Sequence[int]) -> int:
        """Begins to move private blocks, by index, to the host; returns how many there was room for."""
        count = min(len(indices), self.host_free) if self.can_start else 0
        if not count:
            return 0
        chosen = indices[-count:]
        slots = self.pool.host.allocate(count)
        context.park(chosen[0])
        moves = []
        for index, slot in zip(chosen, slots, strict=True):
            place = context.parked[index]
            assert place.block is not None, "the block is not on the device"
            assert place.move is None, "the block is on the move"
            moves.append(_Move(context, index, place, place.block, slot))
        self.pool.share([move.block for move in moves])
        self._start("out", moves)
        return count

    def move_in(self, context: Context, indices: Sequence[int]) -> int:
        """Begins to move absent blocks back, by index, to free blocks of the device; returns how many it could."""
        count = min(len(indices), self.pool.free_count) if self.can_start else 0
        if not count:
            return 0
        moves = []
        for index, block in zip(indices[-count:], self.pool.allocate(count), strict=True):
            place = context.parked[index]
            assert place.slot is not None, "the block is not on the host"
            moves.append(_Move(context, index, place, block, place.slot))
        self._start("in", moves)
        return count

    def poll(self) -> list[tuple[Context, Direction, int]]:
        """Ends moves that are over; returns (context, `out` or `in`, blocks) of those that brought something."""
        if not self._moves or self.swapper is None:
            return []
        arrived = []
        for ticket in self.swapper.poll():
            moves = self._moves.pop(ticket)
            # The last first: a cached block's predecessor is then evicted after it.
            count = sum(self._end(ticket, move) for move in reversed(moves))
            moves[0].context.absorb()
            if count:
                arrived.append((moves[0].context, ticket.direction, count))
        return arrived

    def wait_seconds(self) -> float:
        """How long until `poll` may have something; infinite when nothing moves."""
        return self.swapper.wait_seconds() if self.swapper is not None and self._moves else math.inf

    def close(self) -> None:
        """Ends all moves. To be called before the memory goes."""
        if self.swapper is not None:
            self.swapper.close()
            self.poll()

    def held_blocks(self) -> Iterator[Sequence[int]]:
        """Blocks of the device that moves hold, for `BlockPool.check_integrity`."""
        return ([move.block for move in moves] for moves in self._moves.values())

    def held_slots(self) -> Iterator[Sequence[int]]:
        """Slots that moves hold, and once more those that the swapper holds for them."""
        for ticket, moves in self._moves.items():
            slots = [move.slot for move in moves]
            yield slots
            if ticket.direction == "out":
                yield slots

    def _start(self, direction: Direction, moves: list[_Move]) -> None:
        assert self.swapper is not None
        start = self.swapper.start_out if direction == "out" else self.swapper.start_in
        self._moves[start([(move.block, move.slot) for move in moves])] = moves
        for move in moves:
            move.place.move = move

    def _end(self, ticket: Ticket, move: _Move) -> bool:
        wanted, parked = move.place.move is move, move.context.parked
        arrived = wanted and ticket.state == "done"
        if ticket.direction == "out":
            if arrived:
                parked.moved_out(move.place, move.slot)
            else:
                self.pool.host.release([move.slot])
                move.place.move = None if wanted else move.place.move
            self.pool.release([move.block])
        elif arrived:
            parked.moved_in(move.place, move.block)
        else:
            self.pool.release([move.block])
            if wanted and ticket.state == "failed":
                # What cannot be read is lost, and computed again.
                parked.drop(move.index)
            elif wanted:
                move.place.move = None
        return arrived
