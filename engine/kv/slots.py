"""Which blocks of a tier below the device are in use: the books only, of host memory, of files, of a simulated tier."""

from __future__ import annotations

import heapq
from collections.abc import Iterable


class OutOfSlots(Exception):
    """The tier has fewer free slots than were asked for."""


class SlotPool:
    """`count` slots of one block each. A slot is free or has references: those of its holders, and one of each move
    that reads or writes it, so that whoever lets go in the middle of a move frees nothing too early."""

    def __init__(self, count: int) -> None:
        if count < 0:
            raise ValueError(f"{count} slots")
        self.count = count
        self._references = [0] * count
        # A heap: the lowest first, so that slots of one call are mostly neighbours and can be moved as one piece.
        self._free = list(range(count))

    @property
    def free_count(self) -> int:
        """How many slots `allocate` can hand out."""
        return len(self._free)

    def allocate(self, count: int) -> list[int]:
        """`count` slots in order, with one reference each. Raises `OutOfSlots`, and then allocates nothing."""
        if count > len(self._free):
            raise OutOfSlots(f"{count} slots wanted, {len(self._free)} free")
        slots = [heapq.heappop(self._free) for _ in range(count)]
        for slot in slots:
            self._references[slot] = 1
        return slots

    def is_used(self, slot: int) -> bool:
        """Whether the slot exists and somebody holds it."""
        return 0 <= slot < self.count and self._references[slot] > 0

    def share(self, slots: Iterable[int]) -> None:
        """Adds a reference to each slot, which is held already."""
        for slot in slots:
            assert self._references[slot] > 0, f"slot {slot} is free"
            self._references[slot] += 1

    def release(self, slots: Iterable[int]) -> None:
        """Takes one reference from each slot; one without references is free."""
        for slot in slots:
            assert self._references[slot] > 0, f"slot {slot} is free"
            self._references[slot] -= 1
            if not self._references[slot]:
                heapq.heappush(self._free, slot)

    def check_integrity(self, holders: Iterable[Iterable[int]]) -> None:
        """Asserts that every slot is free or held by exactly those of `holders` (slots of each, moves included) that
        account for its references."""
        counted = [0] * self.count
        for slots in holders:
            for slot in slots:
                counted[slot] += 1
        assert counted == self._references, "reference counts differ from what is held"
        free = [slot for slot, references in enumerate(counted) if not references]
        assert sorted(self._free) == free, "free slots differ"
