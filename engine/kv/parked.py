"""KV of a context that attention cannot read now: blocks behind a gap, in host memory, or on their way.

While a context is held, its policy may drop blocks from the head and move blocks to the host from the tail. What is
left then lies here by block index until the gap before it is closed, by computing or by copying back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from engine.kv.blocks import BlockPool
from engine.kv.slots import SlotPool


@dataclass(slots=True, eq=False)
class Place:
    """Where the KV of one block is: in `block` of the device, in `slot` of the host, or both. One reference is held to
    each. `move` copies one to the other; whoever clears it takes no part in what that brings."""

    block: int | None = None
    slot: int | None = None
    move: object | None = None


class Parked:
    """The `places` of one context, by block index; `end` is the number of its tokens that they reach to."""

    __slots__ = ("_pool", "_slots", "end", "places")

    def __init__(self, pool: BlockPool, slots: SlotPool) -> None:
        self._pool = pool
        self._slots = slots
        self.places: dict[int, Place] = {}
        self.end = 0

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int) -> Place:
        return self.places[index]

    def items(self) -> Iterator[tuple[int, Place]]:
        """All places, by index."""
        return iter(sorted(self.places.items()))

    @property
    def first(self) -> int:
        """The lowest index."""
        return min(self.places)

    @property
    def device_blocks(self) -> list[int]:
        """Blocks of the device that are held here."""
        return [place.block for _, place in self.items() if place.block is not None]

    @property
    def slots(self) -> list[int]:
        """Slots of the host that are held here."""
        return [place.slot for _, place in self.items() if place.slot is not None]

    @property
    def absent(self) -> list[int]:
        """Indices that are in a slot only and that no move brings."""
        return [i for i, place in self.items() if place.block is None and place.slot is not None and not place.move]

    def put(self, index: int, block: int) -> None:
        """Takes over a reference to `block`."""
        assert index not in self.places, f"block {index} is parked"
        self.places[index] = Place(block)

    def take(self, index: int) -> int | None:
        """Hands the device block of `index` over, if it has one, and forgets the place."""
        place = self.places.get(index)
        if place is None or place.block is None:
            return None
        block, place.block = place.block, None
        self.drop(index)
        return block

    def drop(self, index: int) -> None:
        """Gives up what is in a place."""
        place = self.places.pop(index)
        place.move = None
        self._release_block(place)
        self._release_slot(place)
        if self.places:
            self.end = min(self.end, (max(self.places) + 1) * self._pool.block_size)

    def drop_from(self, index: int) -> None:
        """Gives up all places from `index` on."""
        # The last first: a cached block's predecessor is then evicted after it.
        for other in sorted((i for i in self.places if i >= index), reverse=True):
            self.drop(other)

    def drop_device(self) -> None:
        """Gives up blocks of the device; what is in a slot stays."""
        for index, place in sorted(self.places.items(), reverse=True):
            if place.slot is None:
                self.drop(index)
            else:
                place.move = None
                self._release_block(place)

    def moved_out(self, place: Place, slot: int) -> None:
        """A move has filled `slot`, whose reference is taken over; the block is let go."""
        place.move = None
        place.slot = slot
        self._release_block(place)

    def moved_in(self, place: Place, block: int) -> None:
        """A move has filled `block`, whose reference is taken over; the slot is let go."""
        place.move = None
        place.block = block
        self._release_slot(place)

    def _release_block(self, place: Place) -> None:
        if place.block is not None:
            self._pool.release([place.block])
            place.block = None

    def _release_slot(self, place: Place) -> None:
        if place.slot is not None:
            self._slots.release([place.slot])
            place.slot = None
