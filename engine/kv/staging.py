"""Device memory between a KV pool and host memory, where blocks lie as they do on the host.

A block is scattered over the pool, a part in every layer; transfers between device and host want large pieces. So parts
are gathered and scattered on the device, at its memory's speed, and whole runs of slots cross the link.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from engine.kv.planes import Planes, block_bytes, in_words, parts
from engine.kv.swap import Pair


class Staging:
    """Room for `rows` blocks beside the pool, for moves in one direction, one after another.

    On a GPU all calls are asynchronous on the current stream if `host` (uint8 `[slots, block_bytes]`) is pinned.
    """

    def __init__(self, planes: Planes, host: torch.Tensor, rows: int) -> None:
        self._planes = in_words(planes)
        self._device = planes[0].device
        self._host = host
        self._rows = rows
        self._memory = torch.empty(rows, block_bytes(planes), dtype=torch.uint8, device=self._device)
        self._parts = parts(self._memory, self._planes)

    def copy_out(self, pairs: Sequence[Pair]) -> None:
        """Blocks of the pool to slots of the host."""
        for chunk in self._chunks(pairs):
            index = self._index(chunk)
            for plane, part in zip(self._planes, self._parts, strict=True):
                part[: len(chunk)] = plane.index_select(0, index)
            for rows, slots in runs(chunk):
                self._host[slots].copy_(self._memory[rows], non_blocking=True)

    def copy_in(self, pairs: Sequence[Pair]) -> None:
        """Slots of the host to blocks of the pool."""
        for chunk in self._chunks(pairs):
            for rows, slots in runs(chunk):
                self._memory[rows].copy_(self._host[slots], non_blocking=True)
            index = self._index(chunk)
            for plane, part in zip(self._planes, self._parts, strict=True):
                plane.index_copy_(0, index, part[: len(chunk)])

    def _chunks(self, pairs: Sequence[Pair]) -> Iterator[Sequence[Pair]]:
        return (pairs[start : start + self._rows] for start in range(0, len(pairs), self._rows))

    def _index(self, pairs: Sequence[Pair]) -> torch.Tensor:
        # From pageable memory the copy would wait for the stream.
        blocks = torch.tensor([block for block, _ in pairs], pin_memory=self._device.type == "cuda")
        return blocks.to(self._device, non_blocking=True)


def runs(pairs: Sequence[Pair]) -> Iterator[tuple[slice, slice]]:
    """Rows of the staging memory, one for each pair, that are neighbours as slots too; and these slots."""
    start = 0
    for end in range(1, len(pairs) + 1):
        if end == len(pairs) or pairs[end][1] != pairs[end - 1][1] + 1:
            yield slice(start, end), slice(pairs[start][1], pairs[end - 1][1] + 1)
            start = end
