"""Attention of single query tokens over the KV pool, as a Triton kernel of ours.

A drafted token that is to be verified is a row like any other: it has the table of its context and a position of its
own. The query heads that share a KV head are the rows of one matrix product, so K and V are read once for all of them.
Where rows are few, each context is split over several programs, and a second kernel puts their softmaxes together
(flash-decoding; Dao et al., 2023).
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl

_TILE = 64
_MAX_SPLITS = 32
_PROGRAMS = 264
"""Two for each multiprocessor of an H100 or H200."""


def paged_attention(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    table: torch.Tensor,
    starts: torch.Tensor,
    positions: torch.Tensor,
    splits: int | None = None,
) -> torch.Tensor:
    """See `Ops.attend`; `query` is contiguous `[rows, heads, dim]`, `splits` a power of two.

    The grid depends on shapes only, never on lengths, so that a CUDA graph can hold it for contexts of any length.
    """
    rows, heads, dim = query.shape
    block_size, kv_heads = keys.shape[1:3]
    splits = splits or _splits(rows * kv_heads)
    output = torch.empty_like(query)
    partial = torch.empty(rows, heads, splits, dim, dtype=torch.float32, device=query.device) if splits > 1 else output
    sums = torch.empty(rows, heads, splits, dtype=torch.float32, device=query.device) if splits > 1 else output
    padded_dim = max(triton.next_power_of_2(dim), 16)
    # Rows first: those of one context follow each other, and find its K and V in the cache.
    _attend_kernel[rows, kv_heads, splits](
        query,
        keys,
        values,
        table,
        starts,
        positions,
        partial,
        sums,
        math.log2(math.e) / math.sqrt(dim),
        HEADS=heads,
        KV_HEADS=kv_heads,
        DIM=dim,
        PADDED_DIM=padded_dim,
        PADDED_GROUPS=max(triton.next_power_of_2(heads // kv_heads), 16),
        BLOCK_SIZE=block_size,
        TILE=_TILE,
        SPLITS=splits,
        num_warps=4,
        num_stages=3 if query.element_size() == 2 else 2,
    )
    if splits > 1:
        _combine_kernel[rows * heads,](
            partial, sums, output, DIM=dim, PADDED_DIM=padded_dim, SPLITS=splits, num_warps=4
        )
    return output


def _splits(programs: int) -> int:
    wanted: int = triton.next_power_of_2(-(-_PROGRAMS // programs))
    return min(_MAX_SPLITS, wanted)


def _attend(
    query: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    table: tl.tensor,
    starts: tl.tensor,
    positions: tl.tensor,
    partial: tl.tensor,
    sums: tl.tensor,
    scale: tl.tensor,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    PADDED_GROUPS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    SPLITS: tl.constexpr,
) -> None:
    """One row, one KV head, one part of the context; softmax in base 2, `scale` has the factor for it."""
    row, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    groups: tl.constexpr = HEADS // KV_HEADS
    group, d = tl.arange(0, PADDED_GROUPS), tl.arange(0, PADDED_DIM)
    head = kv_head * groups + group
    is_real = (group < groups)[:, None] & (d < DIM)[None, :]
    q_offset = (row * HEADS + head)[:, None] * DIM + d[None, :]
    q = tl.load(query + q_offset, mask=is_real, other=0.0)

    length = tl.load(positions + row) + 1
    blocks = table + tl.load(starts + row)
    part = tl.cdiv(tl.cdiv(length, TILE), SPLITS) * TILE
    begin = split * part
    end = tl.minimum(begin + part, length)

    best = tl.full([PADDED_GROUPS], float("-inf"), tl.float32)
    total = tl.zeros([PADDED_GROUPS], tl.float32)
    summed = tl.zeros([PADDED_GROUPS, PADDED_DIM], tl.float32)
    for first in range(begin, end, TILE):
        t = first + tl.arange(0, TILE)
        # Not masked K and V would bring NaN from slots that were never written.
        is_kept = (t < end)[:, None] & (d < DIM)[None, :]
        block = tl.load(blocks + t // BLOCK_SIZE, mask=t < end, other=0).to(tl.int64)
        offset = ((block * BLOCK_SIZE + t % BLOCK_SIZE) * KV_HEADS + kv_head)[:, None] * DIM + d[None, :]
        k = tl.load(keys + offset, mask=is_kept, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        scores = tl.where((t < end)[None, :], scores, float("-inf"))
        new_best = tl.maximum(best, tl.max(scores, 1))
        weights = tl.exp2(scores - new_best[:, None])
        shrunk = tl.exp2(best - new_best)
        v = tl.load(values + offset, mask=is_kept, other=0.0)
        summed = summed * shrunk[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        total = total * shrunk + tl.sum(weights, 1)
        best = new_best

    if SPLITS == 1:
        tl.store(partial + q_offset, (summed / total[:, None]).to(partial.dtype.element_ty), mask=is_real)
    else:
        at = (row * HEADS + head) * SPLITS + split
        # An empty part is zeros, with the weight 2 ** -inf.
        total = tl.where(total > 0, total, 1.0)
        tl.store(partial + at[:, None] * DIM + d[None, :], summed / total[:, None], mask=is_real)
        tl.store(sums + at, best + tl.log2(total), mask=group < groups)


def _combine(
    partial: tl.tensor,
    sums: tl.tensor,
    output: tl.tensor,
    DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    SPLITS: tl.constexpr,
) -> None:
    """The parts' means, weighted by their sums (base-2 logarithms)."""
    at = tl.program_id(0)
    split, d = tl.arange(0, SPLITS), tl.arange(0, PADDED_DIM)
    logs = tl.load(sums + at * SPLITS + split)
    weights = tl.exp2(logs - tl.max(logs, 0))
    is_real = (split < SPLITS)[:, None] & (d < DIM)[None, :]
    means = tl.load(partial + (at * SPLITS + split)[:, None] * DIM + d[None, :], mask=is_real, other=0.0)
    mean = tl.sum(means * weights[:, None], 0) / tl.sum(weights, 0)
    tl.store(output + at * DIM + d, mean.to(output.dtype.element_ty), mask=d < DIM)


_attend_kernel: Any = triton.jit(_attend)
_combine_kernel: Any = triton.jit(_combine)
