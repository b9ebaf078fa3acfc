"""Ref-counted KV blocks: free, held by contexts, or cached for the next context that begins with the same text.

A keyed block (see `prefix`) is immutable, so what it holds is what its key says for as long as it has one. When its
last holder lets go it stays cached until its memory is needed, the longest unused first.

Free blocks are handed out so that a context's blocks form long contiguous runs, which some attention kernels can read
as a view: a context first asks for the block right after its last one, and a new run starts in the middle of a large
free run, which leaves room to grow both for it and for whoever ends before that run.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from engine.kv.prefix import PrefixIndex
from engine.kv.slots import SlotPool

_RUNS_COMPARED = 32


class OutOfBlocks(Exception):
    """The pool has fewer free blocks than were asked for."""


class BlockPool:
    """Book-keeping of `count` blocks of `block_size` tokens each; the tensors live elsewhere. `host` is the tier below:
    slots of one block each in host memory."""

    def __init__(self, count: int, block_size: int, host: SlotPool | None = None) -> None:
        self.count = count
        self.host = host or SlotPool(0)
        self.block_size = block_size
        self.prefix = PrefixIndex(count)
        self._references = [0] * count
        # One byte per block, 0 = free, else 1: where a run of either ends is found at memory speed.
        self._used = bytearray(count)
        self._unused_count = count
        self._cached: OrderedDict[int, None] = OrderedDict()

    @property
    def free_count(self) -> int:
        """How many blocks `allocate` can hand out: those that are empty and those that are only cached."""
        return self._unused_count + len(self._cached)

    @property
    def cached_count(self) -> int:
        """Blocks that no context holds and that are kept for their text."""
        return len(self._cached)

    def allocate(self, count: int, after: int | None = None) -> list[int]:
        """`count` blocks with one reference and no key each, following block `after` where possible.

        Raises `OutOfBlocks`, and then allocates nothing.
        """
        if count > self.free_count:
            raise OutOfBlocks(f"{count} blocks wanted, {self.free_count} free")
        blocks: list[int] = []
        for missing in range(min(count, self._unused_count), 0, -1):
            block = after + 1 if after is not None and self._is_unused(after + 1) else self._start_run(missing)
            self._used[block] = 1
            blocks.append(block)
            after = block
        self._unused_count -= len(blocks)
        # Sorted, because what one context left is evicted from its end.
        blocks += sorted(self._evict() for _ in range(count - len(blocks)))
        for block in blocks:
            self._references[block] = 1
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        """Adds a reference to each block, which is held already or cached."""
        for block in blocks:
            if self._references[block] == 0:
                assert block in self._cached, f"block {block} is free"
                del self._cached[block]
            self._references[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Takes one reference from each of the consecutive `blocks` of a context; a block without references is cached
        if it is keyed, else free. The last one will be evicted first, so a cached block's predecessor is there too."""
        for block in reversed(blocks):
            assert self._references[block] > 0, f"block {block} is free"
            self._references[block] -= 1
            if self._references[block]:
                continue
            if self.prefix.uid(block):
                self._cached[block] = None
            else:
                self._used[block] = 0
                self._unused_count += 1

    def discard(self, blocks: Sequence[int]) -> None:
        """Like `release`, for blocks whose KV may be wrong: those that nobody else holds are free, not cached, and so
        is all that was computed behind them."""
        for block in reversed(blocks):
            assert self._references[block] > 0, f"block {block} is free"
            self._references[block] -= 1
            # A context that holds a block holds the one before it too, so none holds what is behind this one.
            if not self._references[block]:
                self._forget([block])

    def unkey(self, blocks: Sequence[int]) -> None:
        """Takes the keys of consecutive blocks that no second context holds; what was cached behind them is free."""
        for block in reversed(blocks):
            if self.prefix.uid(block):
                self._forget(self.prefix.children(block))
                self.prefix.remove(block)

    def _forget(self, unheld: list[int]) -> None:
        """Frees blocks that no context holds, and all that was computed behind them."""
        while unheld:
            last = unheld.pop()
            unheld += self.prefix.children(last)
            if self.prefix.uid(last):
                self.prefix.remove(last)
            if self._references[last]:
                # A move out still reads it, and frees it when it has ended.
                continue
            self._cached.pop(last, None)
            self._used[last] = 0
            self._unused_count += 1

    def seal(self, block: int, parent: int, tokens: tuple[int, ...]) -> int:
        """Keys a full block behind the one with uid `parent`; returns the block to hold from now on.

        That is another block when one with the same text exists: the reference moves there.
        """
        existing = self.prefix.find(parent, tokens)
        if existing is None:
            self.prefix.add(block, parent, tokens)
            return block
        self.share([existing])
        self.release([block])
        return existing

    def is_shared(self, block: int) -> bool:
        """Whether more than one context holds the block."""
        return self._references[block] > 1

    def is_writable(self, block: int) -> bool:
        """Whether a holder of the block may write to it; else it has to write to a copy."""
        return self._references[block] == 1 and not self.prefix.uid(block)

    def check_integrity(self, owners: Iterable[Sequence[int]]) -> None:
        """Asserts that every block is free, cached, or held by exactly those of `owners` (the blocks of each context)
        that account for its references, and that keys are right."""
        counted = [0] * self.count
        for blocks in owners:
            assert len(set(blocks)) == len(blocks), "a context holds a block twice"
            for block in blocks:
                counted[block] += 1
        assert counted == self._references, "reference counts differ from what contexts hold"
        for block, references in enumerate(counted):
            cached = block in self._cached
            assert cached == (references == 0 and self.prefix.uid(block) != 0), "cached blocks differ"
            assert bool(self._used[block]) == (cached or references > 0), "used blocks differ"
        assert self._unused_count == self._used.count(0), "free count differs"
        self.prefix.check_integrity()

    def _is_unused(self, block: int) -> bool:
        return block < self.count and not self._used[block]

    def _start_run(self, count: int) -> int:
        best, end = range(0), 0
        # In a pool of many small holes the largest is not worth a search that a step would notice.
        for _ in range(_RUNS_COMPARED):
            start = self._used.find(0, end)
            if start < 0:
                break
            end = self._used.find(1, start)
            if end < 0:
                end = self.count
            if end - start > len(best):
                best = range(start, end)
        if best.start == 0:
            return 0
        return best.start + min(len(best) // 2, max(len(best) - count, 0))

    def _evict(self) -> int:
        block = next(iter(self._cached))
        # What a move still read when its context went away is let go of after the blocks before it.
        block = next((behind for behind in reversed(self._behind(block)) if behind in self._cached), block)
        for moving in reversed(self._behind(block)):
            self.prefix.remove(moving)
        del self._cached[block]
        self.prefix.remove(block)
        return block

    def _behind(self, block: int) -> list[int]:
        """All keyed blocks behind a keyed one, each after the one before it."""
        found = self.prefix.children(block)
        for child in found:
            found += self.prefix.children(child)
        return found
