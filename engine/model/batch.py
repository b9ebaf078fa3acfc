"""What a model runner is given and gives back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from engine.context import BlockCopy
from engine.kv.planes import Planes


@dataclass(frozen=True, slots=True)
class SequenceInput:
    """Tokens of one context at positions `start, start + 1, ...`; its KV lies in `blocks`, these tokens included.

    Logits are wanted after each of the last `logit_rows` tokens: 0 inside a prefill, 1 to sample, more to verify a
    draft.
    """

    tokens: Sequence[int]
    start: int
    blocks: Sequence[int]
    logit_rows: int


@dataclass(frozen=True, slots=True)
class Batch:
    """One step: block copies first, then all sequences on one flat token axis.

    With `sampled` (int64 `[sequences]`, on the device) each sequence is one token, and its id is that row's: the last
    step's choice, which the host need not have seen.
    """

    sequences: Sequence[SequenceInput]
    copies: Sequence[BlockCopy] = ()
    sampled: torch.Tensor | None = None


class Runner(Protocol):
    """A model with its KV pool. Token ids must be below `vocab_size`, positions below `max_positions`."""

    vocab_size: int
    max_positions: int
    bytes_per_token: int
    block_size: int
    kv_blocks: int
    name: str
    """`native` or `transformers`."""
    weights: str
    """`bf16`, `fp32`, `int8` or `q4`."""
    kv_planes: Planes
    """The KV pool, for whoever moves blocks; empty where that is not possible."""

    def run(self, batch: Batch) -> torch.Tensor:
        """Writes the KV of all tokens; returns float32 logits `[rows, vocab_size]`, the `logit_rows` of each sequence
        in order (no rows: `[0, vocab_size]`). The tensor may be reused by the next call. Does not wait for the
        device."""
        ...

    def close(self) -> None:
        """Ends its threads and processes; no further `run`."""
        ...
