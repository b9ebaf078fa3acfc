"""A context: a token sequence, the part of it that is in KV, and what is to be done with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from engine.generation import Generation
from engine.kv.blocks import BlockPool
from engine.kv.parked import Parked
from engine.kv.prefix import ROOT
from engine.messages import Priority

State = Literal["idle", "running", "held"]
BlockCopy = tuple[int, int]
"""(source block, destination block), to be done in order and before the next write to the pool: a later copy may have
the source of an earlier one as its destination."""


@dataclass(slots=True, eq=False)
class Context:
    """Tokens are always kept, so its KV may be dropped at any time: that means recompute, never loss.

    `arrival` orders work inside a priority class; it is stamped when work comes to a context without any, and
    kept over hold and resume. `last_used` is a step number. `model` is an index, `payer` whose allowance is used.

    `kv_length` tokens have their KV in the first `blocks`; whoever computes more raises it and calls `seal`. Then every
    full block is keyed (see `engine.kv.prefix`) and every block further on belongs to this context alone, unless the
    last one is partly used and shared. KV behind a gap or outside of the device is `parked`: no block of it is any
    other context's.

    `computed` tokens have had their KV at some time: computing them again is recompute.
    """

    id: int
    pool: BlockPool
    priority: Priority
    arrival: int = 0
    tokens: list[int] = field(default_factory=list)
    kv_length: int = 0
    blocks: list[int] = field(default_factory=list)
    held: bool = False
    wants_prefill: bool = False
    generation: Generation | None = None
    last_used: int = 0
    model: int = 0
    payer: int = 0
    computed: int = 0
    parked: Parked = field(init=False)

    def __post_init__(self) -> None:
        self.parked = Parked(self.pool, self.pool.host)

    @property
    def kv_end(self) -> int:
        """Behind the last token that is in KV anywhere."""
        return self.parked.end if self.parked.places else self.kv_length

    @property
    def kept_tokens(self) -> int:
        """Tokens whose KV need not be computed again: those in KV, and those parked."""
        if not self.parked:
            return self.kv_length
        return self.kv_length + min(len(self.parked) * self.pool.block_size, self.parked.end - self.kv_length)

    @property
    def device_blocks(self) -> list[int]:
        """Blocks of the device that this context holds."""
        return [*self.blocks, *self.parked.device_blocks] if self.parked.places else self.blocks

    @property
    def state(self) -> State:
        """`held` also while tokens appended during the hold are being prefilled."""
        if self.held:
            return "held"
        return "running" if self.generation is not None or self.pending else "idle"

    @property
    def pending(self) -> int:
        """Tokens that wait to be computed and can be: those up to what is parked."""
        # Asked several times a step of every context that runs.
        generation = self.generation
        if generation is None and not self.wants_prefill:
            return 0
        if self.parked.places:
            return 0 if self.held else self.parked.first * self.pool.block_size - self.kv_length
        return len(self.tokens) - self.kv_length - (generation is not None and not generation.ready)

    @property
    def wants_kv(self) -> bool:
        """Whether it is to have KV of all its tokens."""
        return self.generation is not None or self.wants_prefill

    @property
    def is_restoring(self) -> bool:
        """Whether KV that it needs is parked."""
        return bool(self.parked.places) and self.wants_kv and not self.held

    @property
    def is_leaving(self) -> bool:
        """Whether blocks of it are on their way to the host."""
        return any(place.block is not None and place.move is not None for place in self.parked.places.values())

    @property
    def is_decoding(self) -> bool:
        """Whether only the token sampled last is left to compute."""
        generation = self.generation
        return generation is not None and generation.output_tokens > 0 and self.kv_length == len(self.tokens) - 1

    def append(self, tokens: Sequence[int]) -> None:
        self.tokens.extend(tokens)
        self.wants_prefill = True

    def truncate(self, length: int) -> None:
        """Forgets the tokens from `length` on; KV of the others stays."""
        del self.tokens[length:]
        self.shrink_kv(length)
        self.computed = min(self.computed, length)
        self.wants_prefill = self.wants_prefill and self.kv_length < length

    def fork(self, child_id: int, priority: Priority) -> Context:
        """A new idle context with the same tokens that shares this one's blocks until one of them writes."""
        # A full block is keyed before it is shared, or two contexts could key what follows it differently.
        self.seal()
        child = Context(child_id, self.pool, priority, self.arrival, list(self.tokens), self.kv_length)
        child.blocks = self.blocks[: self._blocks_for(self.kv_length)]
        child.last_used, child.model, child.payer = self.last_used, self.model, self.payer
        child.computed = child.kv_length
        self.pool.share(child.blocks)
        return child

    def match_prefix(self) -> int:
        """Takes over KV of the same tokens that others have computed; returns how many tokens that gains.

        While a generation waits, its last token is left, because the logits after it have to be computed. A match may
        end inside a block, which then is copied before the next write to it. Not for a context whose blocks are
        reserved for a step in progress.
        """
        limit = len(self.tokens) - (self.generation is not None)
        if self.kv_length >= limit or (self.held and self.parked):
            return 0
        self.seal()
        prefix, size = self.pool.prefix, self.pool.block_size
        kept = self.kv_length // size
        parent = prefix.uid(self.blocks[kept - 1]) if kept else ROOT
        found: list[int] = []
        length = kept * size
        while length < limit:
            tokens = tuple(self.tokens[length : min(length + size, limit)])
            block, common = prefix.longest(parent, tokens)
            if not common:
                break
            found.append(block)
            length += common
            if common < size:
                break
            parent = prefix.uid(block)
        if self.parked and length < self.parked.end and length % size:
            # What is parked goes on at a border of blocks.
            found.pop()
            length -= length % size
        gained = length - self.kv_length
        if gained <= 0:
            return 0
        self.pool.share(found)
        self.pool.release(self.blocks[kept:])
        self.blocks[kept:] = found
        self.advance(length)
        self.wants_prefill = self.wants_prefill and self.kv_length < len(self.tokens)
        return gained

    def seal(self) -> None:
        """Keys the full blocks computed since the last call, so that others can share them; where another context has
        computed the same, this one switches to its block. `kv_length` must count only tokens whose KV was written."""
        prefix, size = self.pool.prefix, self.pool.block_size
        full = first = self.kv_length // size
        while first and not prefix.uid(self.blocks[first - 1]):
            first -= 1
        for i in range(first, full):
            parent = prefix.uid(self.blocks[i - 1]) if i else ROOT
            self.blocks[i] = self.pool.seal(self.blocks[i], parent, tuple(self.tokens[i * size : (i + 1) * size]))

    def shrink_kv(self, length: int) -> None:
        """Keeps the KV of at most the first `length` tokens and gives back blocks that hold no others."""
        if self.parked:
            self.parked.drop_from(self._blocks_for(length))
            self.parked.end = min(self.parked.end, length)
        self.kv_length = min(self.kv_length, length)
        self.trim()

    def trim(self) -> None:
        """Gives back blocks that were reserved for tokens that did not come."""
        used = self._blocks_for(self.kv_length)
        if used < len(self.blocks):
            self.pool.release(self.blocks[used:])
            del self.blocks[used:]

    @property
    def private_blocks(self) -> list[int]:
        """Indices of blocks on the device that only this context holds and that no move reads, in order."""
        first = len(self.blocks)
        while first and not self.pool.is_shared(self.blocks[first - 1]):
            first -= 1
        used = self._blocks_for(self.kv_length)
        parked = [i for i, place in self.parked.items() if place.block is not None and place.move is None]
        return [*range(first, used), *parked]

    def park(self, index: int) -> None:
        """Parks the blocks from `index` on, which must be private: KV before it only can be read from now on."""
        used = self._blocks_for(self.kv_length)
        if index >= used:
            return
        self.parked.end = self.kv_end
        self.trim()
        for i in range(index, used):
            self.parked.put(i, self.blocks[i])
        del self.blocks[index:]
        self.kv_length = index * self.pool.block_size

    def drop_blocks(self, indices: Sequence[int]) -> None:
        """Gives up the KV in private blocks, by index; what is behind them is parked."""
        if not indices:
            return
        self.park(indices[0])
        # A key says what is before a block, and that may be evicted now.
        self.pool.unkey(
            [place.block for i, place in self.parked.items() if place.block is not None and i > indices[-1]]
        )
        for index in reversed(indices):
            self.parked.drop(index)

    def advance(self, length: int) -> int:
        """Tokens up to `length` are in KV now; returns how many of the new ones had been computed before."""
        recomputed = max(min(length, self.computed) - self.kv_length, 0)
        self.kv_length = length
        self.computed = max(self.computed, length)
        if self.parked.places:
            self.absorb()
        return recomputed

    def absorb(self) -> None:
        """Takes parked KV back that is on the device and has no gap before it any more; not during a hold."""
        while self.parked and not self.held:
            index, inside = divmod(self.kv_length, self.pool.block_size)
            first = self.parked.first
            if first < index or (first == index and inside):
                # Found elsewhere in the meantime.
                self.parked.drop(first)
                continue
            end = self.parked.end
            self.trim()
            block = self.parked.take(index) if first == index else None
            if block is None:
                return
            self.blocks.append(block)
            self.kv_length = min((index + 1) * self.pool.block_size, end)

    def blocks_needed(self, count: int) -> int:
        """How many free blocks `reserve(count)` takes."""
        growth = self._growth(count)
        return growth + self._copies_tail(growth)

    def reserve(self, count: int) -> list[BlockCopy]:
        """Makes room for the KV of the next `count` tokens, in blocks that this context may write to.

        Fewer may come: the room stays until they do, `trim` or `shrink_kv`. Raises `OutOfBlocks` and changes nothing
        when the pool has fewer than `blocks_needed(count)` free blocks.
        """
        growth = self._growth(count)
        index, inside = divmod(self.kv_length, self.pool.block_size)
        if not growth and (not inside or self.pool.is_writable(self.blocks[index])):
            return []
        copies: list[BlockCopy] = []
        copied = self._copies_tail(growth)
        fresh = self.pool.allocate(growth + copied, after=self.blocks[-1] if self.blocks else None)
        if copied:
            source, target = self.blocks[index], fresh.pop(0)
            copies.append((source, target))
            self.blocks[index] = target
            self.pool.release([source])
        elif inside and self.pool.prefix.uid(self.blocks[index]):
            self.pool.prefix.remove(self.blocks[index])
        self.blocks.extend(fresh)
        return copies

    def drop_kv(self, *, spoiled: bool = False) -> int:
        """Gives all blocks back; returns how many tokens were in KV. `spoiled`: it may be wrong, so nobody else who
        begins with the same text shall get it."""
        dropped = self.kv_end
        if spoiled:
            self.parked.drop_from(0)
            self.pool.discard(self.blocks)
            self.blocks.clear()
        self.shrink_kv(0)
        return dropped

    def drop_device_kv(self) -> int:
        """Gives all blocks of the device back, keeping what is in host memory; returns how many tokens that costs."""
        before = self.kv_end
        self.parked.drop_device()
        kept = len(self.parked.slots) * self.pool.block_size
        self.kv_length = 0
        self.trim()
        return max(before - kept, 0)

    def check_integrity(self) -> None:
        """Asserts that lengths fit and that keyed blocks hold this context's tokens."""
        prefix, size = self.pool.prefix, self.pool.block_size
        assert self.kv_length <= len(self.tokens) - (self.generation is not None), "KV of no token"
        assert len(self.blocks) >= self._blocks_for(self.kv_length), "KV outside of the blocks"
        if self.parked:
            assert self.kv_length % size == 0, "a gap inside a block"
            assert self.kv_length <= self.parked.first * size < self.parked.end <= len(self.tokens), (
                "parked out of place"
            )
            assert len(self.blocks) * size == self.kv_length, "blocks reserved behind a gap"
        parent = ROOT
        for i, block in enumerate(self.blocks):
            key = prefix.key(block)
            known = self.tokens[i * size : min((i + 1) * size, self.kv_length)]
            if key is not None:
                assert i == 0 or parent, "a keyed block follows one without a key"
                assert key[0] == parent, "a keyed block follows another block than its key says"
                assert list(key[1][: len(known)]) == known, "a keyed block holds other tokens"
            parent = prefix.uid(block)

    def _growth(self, count: int) -> int:
        return max(self._blocks_for(self.kv_length + count) - len(self.blocks), 0)

    def _copies_tail(self, growth: int) -> bool:
        """Whether the next token must go to a copy of its block. A keyed block of this context alone loses its key
        instead when there is no block to copy it to: a context as large as the pool has to work."""
        index, inside = divmod(self.kv_length, self.pool.block_size)
        if not inside or self.pool.is_writable(self.blocks[index]):
            return False
        return self.pool.is_shared(self.blocks[index]) or self.pool.free_count > growth

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.pool.block_size)
