"""Ref-counted KV blocks, handed out so that a context's blocks form long contiguous runs.

Attention over one contiguous run reads a view of the pool; over scattered blocks it has to gather a copy
every step. So a context first asks for the block right after its last one, and a new run starts in the middle
of the largest free run, which leaves room to grow both for it and for whoever ends before that run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_FREE_RUN = re.compile(rb"\x00+")


class OutOfBlocks(Exception):
    """The pool has fewer free blocks than were asked for."""


class BlockPool:
    """Book-keeping of `count` blocks of `block_size` tokens each; the tensors live elsewhere."""

    def __init__(self, count: int, block_size: int) -> None:
        self.count = count
        self.block_size = block_size
        self.free_count = count
        self._references = [0] * count
        # One byte per block, 0 = free: free runs are found by a regular expression at C speed.
        self._used = bytearray(count)

    def allocate(self, count: int, after: int | None = None) -> list[int]:
        """`count` blocks with one reference each, following block `after` where possible.

        Raises `OutOfBlocks`, and then allocates nothing.
        """
        if count > self.free_count:
            raise OutOfBlocks(f"{count} blocks wanted, {self.free_count} free")
        blocks: list[int] = []
        for missing in range(count, 0, -1):
            block = after + 1 if after is not None and self._is_free(after + 1) else self._start_run(missing)
            self._used[block] = 1
            self._references[block] = 1
            self.free_count -= 1
            blocks.append(block)
            after = block
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        """Adds a reference to each block."""
        for block in blocks:
            assert self._references[block] > 0, f"block {block} is free"
            self._references[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Takes one reference from each block; blocks without references are free again."""
        for block in blocks:
            assert self._references[block] > 0, f"block {block} is free"
            self._references[block] -= 1
            if self._references[block] == 0:
                self._used[block] = 0
                self.free_count += 1

    def is_shared(self, block: int) -> bool:
        """Whether more than one context holds the block (writing to it needs a copy)."""
        return self._references[block] > 1

    def check_integrity(self, owners: Iterable[Sequence[int]]) -> None:
        """Asserts that the blocks of `owners` (one sequence per context) account for every reference."""
        counted = [0] * self.count
        for blocks in owners:
            assert len(set(blocks)) == len(blocks), "a context holds a block twice"
            for block in blocks:
                counted[block] += 1
        assert counted == self._references, "reference counts differ from what contexts hold"
        assert self.free_count == counted.count(0), "free count differs"
        assert all(bool(used) == (count > 0) for used, count in zip(self._used, counted, strict=True))

    def _is_free(self, block: int) -> bool:
        return block < self.count and not self._used[block]

    def _start_run(self, count: int) -> int:
        runs = (match.span() for match in _FREE_RUN.finditer(self._used))
        start, end = max(runs, key=lambda span: span[1] - span[0])
        if start == 0:
            return 0
        length = end - start
        return start + min(length // 2, max(length - count, 0))
