"""A context: a token sequence, the part of it that is in KV, and what is to be done with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from engine.kv.blocks import BlockPool
from engine.messages import GenerateParams, Priority

if TYPE_CHECKING:
    from engine.model.grammar import Matcher

State = Literal["idle", "running", "held"]
BlockCopy = tuple[int, int]
"""(source block, destination block), to be done before the next write to the pool."""


@dataclass(slots=True, eq=False)
class Generation:
    """One `generate` in progress. Times are `time.time()` seconds, 0.0 = not yet."""

    id: int
    params: GenerateParams
    max_tokens: int
    stop_token_ids: frozenset[int]
    prompt_tokens: int
    cached_tokens: int
    received_at: float
    matcher: Matcher | None = None
    output_tokens: int = 0
    first_scheduled_at: float = 0.0
    first_token_at: float = 0.0


@dataclass(slots=True, eq=False)
class Context:
    """Tokens are always kept, so its KV may be dropped at any time: that means recompute, never loss.

    `arrival` orders work inside a priority class; it is stamped when work comes to a context without any, and
    kept over hold and resume. `last_used` is a step number.
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

    @property
    def state(self) -> State:
        """`held` also while tokens appended during the hold are being prefilled."""
        if self.held:
            return "held"
        return "running" if self.pending else "idle"

    @property
    def pending(self) -> int:
        """Tokens that wait to be computed."""
        wanted = self.generation is not None or self.wants_prefill
        return len(self.tokens) - self.kv_length if wanted else 0

    @property
    def is_decoding(self) -> bool:
        """Whether only the token sampled last is left to compute."""
        return self.generation is not None and self.generation.output_tokens > 0 and self.pending == 1

    def append(self, tokens: Sequence[int]) -> None:
        self.tokens.extend(tokens)
        self.wants_prefill = True

    def truncate(self, length: int) -> None:
        """Forgets the tokens from `length` on; KV of the others stays."""
        del self.tokens[length:]
        self.shrink_kv(length)
        self.wants_prefill = self.wants_prefill and self.kv_length < length

    def fork(self, child_id: int, priority: Priority) -> Context:
        """A new idle context with the same tokens that shares this one's blocks until one of them writes."""
        child = Context(child_id, self.pool, priority, self.arrival, list(self.tokens), self.kv_length)
        child.blocks = list(self.blocks[: self._blocks_for(self.kv_length)])
        child.last_used = self.last_used
        self.pool.share(child.blocks)
        return child

    def shrink_kv(self, length: int) -> None:
        """Keeps the KV of at most the first `length` tokens and gives back blocks that hold no others."""
        self.kv_length = min(self.kv_length, length)
        kept = self._blocks_for(self.kv_length)
        self.pool.release(self.blocks[kept:])
        del self.blocks[kept:]

    def blocks_needed(self, count: int) -> int:
        """How many free blocks `reserve(count)` takes."""
        growth = self._blocks_for(self.kv_length + count) - len(self.blocks)
        return max(growth, 0) + self._must_copy_tail()

    def reserve(self, count: int) -> list[BlockCopy]:
        """Makes room for the KV of the next `count` tokens, with the tail block owned by this context alone.

        Raises `OutOfBlocks` and changes nothing when the pool has fewer than `blocks_needed(count)` free blocks.
        """
        needed = self.blocks_needed(count)
        if not needed:
            return []
        copies: list[BlockCopy] = []
        tail = self.blocks[-1] if self.blocks else None
        fresh = self.pool.allocate(needed, after=tail)
        if self._must_copy_tail():
            shared = self.blocks.pop()
            copies.append((shared, fresh[0]))
            self.pool.release([shared])
        self.blocks.extend(fresh)
        return copies

    def drop_kv(self) -> int:
        """Gives all blocks back; returns how many tokens were in KV."""
        dropped = self.kv_length
        self.shrink_kv(0)
        self.pool.release(self.blocks)
        self.blocks.clear()
        return dropped

    def _must_copy_tail(self) -> bool:
        partial = self.kv_length % self.pool.block_size != 0
        return partial and self.pool.is_shared(self.blocks[self.kv_length // self.pool.block_size])

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.pool.block_size)
