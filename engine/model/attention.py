"""Paged attention under transformers' attention interface.

All sequences of a step lie on one flat token axis. The layout of the step (`PagedBatch`) is computed once and passed
through the model's keyword arguments to every layer. Queries of one KV head are folded into rows, so K and V are never
repeated for grouped-query attention.

Layers with a sliding window keep the KV of tokens that have left it: a context may be cut back, forked or shared at any
token, and then these are wanted again. What the window saves is reading them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from engine.kv.tensors import KvTensors
from engine.model.batch import SequenceInput

IMPLEMENTATION = "midstream_paged"


@dataclass(frozen=True, slots=True)
class PagedSequence:
    """Queries `[query_start, query_end)` of the flat axis attend to `kv_length` tokens, of which they are the last.

    These lie in slots `[slot, slot + kv_length)` or, when `blocks` is given, in those blocks.
    """

    query_start: int
    query_end: int
    kv_length: int
    slot: int
    blocks: torch.Tensor | None

    def first_token(self, window: int | None) -> int:
        """The first token that the first query sees; `window` is how many tokens each query sees, itself included."""
        if window is None:
            return 0
        return max(self.kv_length - (self.query_end - self.query_start) + 1 - window, 0)


@dataclass(slots=True)
class PagedBatch:
    """`slots` (int64 `[tokens]`) is where each token's K and V go; None when they go to `slots_start` onwards."""

    kv: KvTensors
    sequences: list[PagedSequence]
    slots: torch.Tensor | None
    slots_start: int
    groups: int
    _masks: dict[tuple[int, int | None], torch.Tensor] = field(default_factory=dict)

    @property
    def windows(self) -> set[int | None]:
        """What layers have asked for so far, by sequences of several queries."""
        return {window for _, window in self._masks}

    def mask(self, sequence: PagedSequence, window: int | None) -> torch.Tensor | None:
        """Bool `[groups * queries, kv_length - first_token]`, true = attend; None when every query sees everything.
        Made once for all layers with the same window."""
        queries = sequence.query_end - sequence.query_start
        if queries == 1:
            return None
        key = (sequence.query_start, window)
        if key not in self._masks:
            first = sequence.first_token(window)
            self._masks[key] = _causal_mask(queries, sequence.kv_length - first, window, self.groups, self.kv.device)
        return self._masks[key]


def lay_out(sequences: Sequence[SequenceInput], kv: KvTensors, groups: int, device: torch.device) -> PagedBatch:
    """The layout of a step; `groups` is how many query heads share a KV head."""
    size = kv.block_size
    paged: list[PagedSequence] = []
    slots: list[int] = []
    offset = 0
    for sequence in sequences:
        count = len(sequence.tokens)
        length = sequence.start + count
        used = sequence.blocks[: -(-length // size)]
        first = used[0]
        is_run = used[-1] - first == len(used) - 1 and list(used) == list(range(first, first + len(used)))
        blocks = None if is_run else torch.tensor(used, dtype=torch.int64, device=device)
        paged.append(PagedSequence(offset, offset + count, length, first * size, blocks))
        if is_run:
            slots.extend(range(first * size + sequence.start, first * size + length))
        else:
            slots.extend(used[i // size] * size + i % size for i in range(sequence.start, length))
        offset += count
    is_one_run = slots[-1] - slots[0] == len(slots) - 1 and len(paged) == 1 and paged[0].blocks is None
    index = None if is_one_run else torch.tensor(slots, dtype=torch.int64, device=device)
    return PagedBatch(kv, paged, index, slots[0], groups)


def _causal_mask(queries: int, length: int, window: int | None, groups: int, device: torch.device) -> torch.Tensor:
    """The last query sees up to the last token, each one before it one token less; at most `window` of them."""
    seen = torch.ones(queries, length, dtype=torch.bool, device=device).tril_(length - queries)
    if window is not None:
        seen = seen.triu_(length - queries - window + 1)
    return seen.repeat(groups, 1)


def paged_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    *,
    paged_batch: PagedBatch,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention over the pool. `query` `[1, heads, tokens, dim]`, `key`/`value` `[1, kv_heads, tokens, dim]`;
    returns `[1, tokens, heads, dim]`. Raises `NotImplementedError` for score capping and sinks."""
    if softcap is not None or s_aux is not None:
        raise NotImplementedError("attention with soft capping or sinks")
    kv = paged_batch.kv
    layer: int = module.layer_idx
    keys, values = kv.keys[layer], kv.values[layer]
    _write(keys, key[0], paged_batch)
    _write(values, value[0], paged_batch)
    heads, tokens, dim = query.shape[1:]
    kv_heads = keys.shape[0]
    # [kv_heads, groups, tokens, dim]: consecutive query heads share a KV head.
    grouped = query.view(kv_heads, heads // kv_heads, tokens, dim)
    outputs = [
        _attend(grouped, keys, values, sequence, paged_batch, scaling, sliding_window)
        for sequence in paged_batch.sequences
    ]
    # Some architectures `view` what they get, as they may with transformers' own attention.
    output = outputs[0].contiguous() if len(outputs) == 1 else torch.cat(outputs)
    return output.unsqueeze(0), None


def _write(pool: torch.Tensor, rows: torch.Tensor, batch: PagedBatch) -> None:
    if batch.slots is None:
        pool[:, batch.slots_start : batch.slots_start + rows.shape[1]] = rows
    else:
        pool.index_copy_(1, batch.slots, rows)


def _attend(
    grouped: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    sequence: PagedSequence,
    batch: PagedBatch,
    scaling: float | None,
    window: int | None,
) -> torch.Tensor:
    """One sequence; returns `[queries, heads, dim]`."""
    kv_heads, groups, _, dim = grouped.shape
    queries = sequence.query_end - sequence.query_start
    folded = grouped[:, :, sequence.query_start : sequence.query_end].reshape(1, kv_heads, groups * queries, dim)
    first = sequence.first_token(window)
    if sequence.blocks is None:
        run = slice(sequence.slot + first, sequence.slot + sequence.kv_length)
        k, v = keys[:, run], values[:, run]
    else:
        k = batch.kv.gather(keys, sequence.blocks, first, sequence.kv_length)
        v = batch.kv.gather(values, sequence.blocks, first, sequence.kv_length)
    attended = scaled_dot_product_attention(
        folded, k.unsqueeze(0), v.unsqueeze(0), attn_mask=batch.mask(sequence, window), scale=scaling
    )
    return attended.view(kv_heads * groups, queries, dim).transpose(0, 1)


AttentionInterface.register(IMPLEMENTATION, paged_attention)
