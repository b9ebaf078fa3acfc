"""Paged attention under transformers' attention interface.

All sequences of a step lie on one flat token axis. The layout of the step (`PagedBatch`) is computed once and passed
through the model's keyword arguments to every layer. Queries of one KV head are folded into rows, so K and V are never
repeated for grouped-query attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from engine.kv.tensors import KvTensors
from engine.model.batch import SequenceInput

IMPLEMENTATION = "midstream_paged"


@dataclass(frozen=True, slots=True)
class PagedSequence:
    """Queries `[query_start, query_end)` of the flat axis attend to `kv_length` tokens.

    These lie in slots `[slot, slot + kv_length)` or, when `blocks` is given, in those blocks. `mask` is a bool
    `[groups * queries, kv_length]` (true = attend), or None when every query sees everything.
    """

    query_start: int
    query_end: int
    kv_length: int
    slot: int
    blocks: torch.Tensor | None
    mask: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class PagedBatch:
    """`slots` (int64 `[tokens]`) is where each token's K and V go; None when they go to `slots_start` onwards."""

    kv: KvTensors
    sequences: list[PagedSequence]
    slots: torch.Tensor | None
    slots_start: int


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
        mask = _causal_mask(count, length, groups, device) if count > 1 else None
        paged.append(PagedSequence(offset, offset + count, length, first * size, blocks, mask))
        if is_run:
            slots.extend(range(first * size + sequence.start, first * size + length))
        else:
            slots.extend(used[i // size] * size + i % size for i in range(sequence.start, length))
        offset += count
    is_one_run = slots[-1] - slots[0] == len(slots) - 1 and len(paged) == 1 and paged[0].blocks is None
    index = None if is_one_run else torch.tensor(slots, dtype=torch.int64, device=device)
    return PagedBatch(kv, paged, index, slots[0])


def _causal_mask(queries: int, length: int, groups: int, device: torch.device) -> torch.Tensor:
    """Bool `[groups * queries, length]`: the last query sees everything, each one before it one token less."""
    full = torch.ones(queries, length, dtype=torch.bool, device=device)
    return full.tril_(length - queries).repeat(groups, 1)


def paged_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    *,
    paged_batch: PagedBatch,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention over the pool. `query` `[1, heads, tokens, dim]`, `key`/`value` `[1, kv_heads, tokens, dim]`;
    returns `[1, tokens, heads, dim]`."""
    kv = paged_batch.kv
    layer: int = module.layer_idx
    keys, values = kv.keys[layer], kv.values[layer]
    _write(keys, key[0], paged_batch)
    _write(values, value[0], paged_batch)
    heads, tokens, dim = query.shape[1:]
    kv_heads = keys.shape[0]
    # [kv_heads, groups, tokens, dim]: consecutive query heads share a KV head.
    grouped = query.view(kv_heads, heads // kv_heads, tokens, dim)
    outputs = [_attend(grouped, keys, values, sequence, kv, scaling) for sequence in paged_batch.sequences]
    output = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
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
    kv: KvTensors,
    scaling: float | None,
) -> torch.Tensor:
    """One sequence; returns `[queries, heads, dim]`."""
    kv_heads, groups, _, dim = grouped.shape
    queries = sequence.query_end - sequence.query_start
    folded = grouped[:, :, sequence.query_start : sequence.query_end].reshape(1, kv_heads, groups * queries, dim)
    if sequence.blocks is None:
        run = slice(sequence.slot, sequence.slot + sequence.kv_length)
        k, v = keys[:, run], values[:, run]
    else:
        k = kv.gather(keys, sequence.blocks, sequence.kv_length)
        v = kv.gather(values, sequence.blocks, sequence.kv_length)
    attended = scaled_dot_product_attention(
        folded, k.unsqueeze(0), v.unsqueeze(0), attn_mask=sequence.mask, scale=scaling
    )
    return attended.view(kv_heads * groups, queries, dim).transpose(0, 1)


AttentionInterface.register(IMPLEMENTATION, paged_attention)
