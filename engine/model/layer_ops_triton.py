"""The layer's small operations as Triton kernels, each one pass over memory: see `layer_ops`.

A decode step of one sequence reads every weight once, and a GPU launch costs about as much as one of these operations:
fused, a layer is ten launches.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch.nn.functional import linear

from engine.model.layer_ops import Heads, Rows
from engine.model.paged_attention_triton import paged_attention
from engine.model.weights import LayerWeights

_GATE_TILE = 1024
_HEADS_TILE = 8
_OUTPUTS, _INPUTS = 8, 1024


class TritonOps:
    """See `Ops`."""

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """See `Ops`. One row is a matrix-vector product: reading the weights is all there is to it."""
        if len(x) != 1:
            return linear(x, weight, bias)
        outputs, inputs = weight.shape
        y = torch.empty(1, outputs, dtype=x.dtype, device=x.device)
        _vector_kernel[triton.cdiv(outputs, _OUTPUTS),](
            x,
            weight,
            bias if bias is not None else weight,
            y,
            outputs,
            inputs,
            BIASED=bias is not None,
            OUTPUTS=_OUTPUTS,
            INPUTS=_INPUTS,
            num_warps=4,
        )
        return y

    def add_norm(
        self, residual: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """See `Ops`."""
        rows, size = residual.shape
        output = torch.empty_like(residual)
        _add_norm_kernel[rows,](
            residual,
            delta if delta is not None else residual,
            weight,
            output,
            size,
            eps,
            ADDS=delta is not None,
            SIZE=triton.next_power_of_2(size),
            num_warps=8,
        )
        return output

    def rotate_and_store(
        self, qkv: torch.Tensor, layer: LayerWeights, heads: Heads, rows: Rows, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        """See `Ops`."""
        query = torch.empty(len(qkv), heads.query, heads.dim, dtype=qkv.dtype, device=qkv.device)
        normed = layer.q_norm is not None
        _rotate_kernel[len(qkv), triton.cdiv(heads.query + 2 * heads.kv, _HEADS_TILE)](
            qkv,
            query,
            keys,
            values,
            rows.slots,
            rows.cos,
            rows.sin,
            layer.q_norm if normed else qkv,
            layer.k_norm if normed else qkv,
            heads.eps,
            NORMED=normed,
            QUERY=heads.query,
            KV=heads.kv,
            HALF=heads.dim // 2,
            PADDED_HALF=triton.next_power_of_2(heads.dim // 2),
            TILE=_HEADS_TILE,
            num_warps=2,
        )
        return query

    def attend(self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, rows: Rows) -> torch.Tensor:
        """See `Ops`."""
        return paged_attention(query, keys, values, rows.table, rows.starts, rows.positions)

    def gate(self, gate_up: torch.Tensor) -> torch.Tensor:
        """See `Ops`."""
        rows, size = len(gate_up), gate_up.shape[1] // 2
        output = torch.empty(rows, size, dtype=gate_up.dtype, device=gate_up.device)
        _gate_kernel[rows, triton.cdiv(size, _GATE_TILE)](gate_up, output, size, TILE=_GATE_TILE, num_warps=4)
        return output


def _vector(
    x: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    y: tl.tensor,
    outputs: tl.tensor,
    inputs: tl.tensor,
    BIASED: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
) -> None:
    """`OUTPUTS` rows of the matrix."""
    n, k = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS), tl.arange(0, INPUTS)
    row = weight + n.to(tl.int64)[:, None] * inputs
    sums = tl.zeros([OUTPUTS, INPUTS], tl.float32)
    for first in range(0, inputs, INPUTS):
        at = first + k
        w = tl.load(row + at[None, :], mask=(n < outputs)[:, None] & (at < inputs)[None, :], other=0.0)
        sums += w.to(tl.float32) * tl.load(x + at, mask=at < inputs, other=0.0).to(tl.float32)[None, :]
    result = tl.sum(sums, 1)
    if BIASED:
        result += tl.load(bias + n, mask=n < outputs, other=0.0).to(tl.float32)
    tl.store(y + n, result.to(y.dtype.element_ty), mask=n < outputs)


def _add_norm(
    residual: tl.tensor,
    delta: tl.tensor,
    weight: tl.tensor,
    output: tl.tensor,
    size: tl.tensor,
    eps: tl.tensor,
    ADDS: tl.constexpr,
    SIZE: tl.constexpr,
) -> None:
    """One row."""
    i = tl.arange(0, SIZE)
    at, is_real = tl.program_id(0).to(tl.int64) * size + i, i < size
    x = tl.load(residual + at, mask=is_real, other=0.0)
    if ADDS:
        x = (x.to(tl.float32) + tl.load(delta + at, mask=is_real, other=0.0).to(tl.float32)).to(x.dtype)
        tl.store(residual + at, x, mask=is_real)
    wide = x.to(tl.float32)
    normed = (wide * tl.rsqrt(tl.sum(wide * wide, 0) / size + eps)).to(x.dtype)
    w = tl.load(weight + i, mask=is_real, other=0.0)
    tl.store(output + at, (normed.to(tl.float32) * w.to(tl.float32)).to(x.dtype), mask=is_real)


def _rotate(
    qkv: tl.tensor,
    query: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    slots: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    q_norm: tl.tensor,
    k_norm: tl.tensor,
    eps: tl.tensor,
    NORMED: tl.constexpr,
    QUERY: tl.constexpr,
    KV: tl.constexpr,
    HALF: tl.constexpr,
    PADDED_HALF: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    """`TILE` heads of one row, of any kind; each head as its two halves, `a` and `b`."""
    row = tl.program_id(0).to(tl.int64)
    head, i = tl.program_id(1) * TILE + tl.arange(0, TILE), tl.arange(0, PADDED_HALF)
    is_half = (i < HALF)[None, :]
    is_query = (head < QUERY)[:, None] & is_half
    is_key = ((head >= QUERY) & (head < QUERY + KV))[:, None] & is_half
    is_value = ((head >= QUERY + KV) & (head < QUERY + 2 * KV))[:, None] & is_half
    is_real = is_query | is_key | is_value
    source = qkv + (row * (QUERY + 2 * KV) + head)[:, None] * (2 * HALF) + i[None, :]
    narrow_a, narrow_b = tl.load(source, mask=is_real, other=0.0), tl.load(source + HALF, mask=is_real, other=0.0)
    a, b = narrow_a.to(tl.float32), narrow_b.to(tl.float32)
    if NORMED:
        scale = tl.rsqrt((tl.sum(a * a, 1) + tl.sum(b * b, 1)) / (2 * HALF) + eps)[:, None]
        at = tl.zeros([TILE, PADDED_HALF], tl.int32) + i[None, :]
        weight_a = tl.load(q_norm + at, mask=is_query, other=0.0) + tl.load(k_norm + at, mask=is_key, other=0.0)
        at += HALF
        weight_b = tl.load(q_norm + at, mask=is_query, other=0.0) + tl.load(k_norm + at, mask=is_key, other=0.0)
        # Rounded to the model's dtype twice, as the norm of `layer_ops` is.
        a = ((a * scale).to(narrow_a.dtype).to(tl.float32) * weight_a.to(tl.float32)).to(narrow_a.dtype).to(tl.float32)
        b = ((b * scale).to(narrow_a.dtype).to(tl.float32) * weight_b.to(tl.float32)).to(narrow_a.dtype).to(tl.float32)
    c = tl.load(cos + row * HALF + i, mask=i < HALF, other=0.0)[None, :]
    s = tl.load(sin + row * HALF + i, mask=i < HALF, other=0.0)[None, :]
    rotated_a, rotated_b = (a * c - b * s).to(narrow_a.dtype), (b * c + a * s).to(narrow_a.dtype)
    target = query + (row * QUERY + head)[:, None] * (2 * HALF) + i[None, :]
    tl.store(target, rotated_a, mask=is_query)
    tl.store(target + HALF, rotated_b, mask=is_query)
    slot = tl.load(slots + row) * KV
    target = keys + (slot + head - QUERY)[:, None] * (2 * HALF) + i[None, :]
    tl.store(target, rotated_a, mask=is_key)
    tl.store(target + HALF, rotated_b, mask=is_key)
    target = values + (slot + head - QUERY - KV)[:, None] * (2 * HALF) + i[None, :]
    tl.store(target, narrow_a, mask=is_value)
    tl.store(target + HALF, narrow_b, mask=is_value)


def _gate(gate_up: tl.tensor, output: tl.tensor, size: tl.tensor, TILE: tl.constexpr) -> None:
    row, i = tl.program_id(0).to(tl.int64), tl.program_id(1) * TILE + tl.arange(0, TILE)
    gate = tl.load(gate_up + row * 2 * size + i, mask=i < size, other=0.0)
    up = tl.load(gate_up + row * 2 * size + size + i, mask=i < size, other=0.0).to(tl.float32)
    wide = gate.to(tl.float32)
    # silu is rounded before the product, as in `layer_ops`.
    silu = (wide / (1 + tl.exp(-wide))).to(gate.dtype).to(tl.float32)
    tl.store(output + row * size + i, (silu * up).to(gate.dtype), mask=i < size)


_vector_kernel: Any = triton.jit(_vector)
_add_norm_kernel: Any = triton.jit(_add_norm)
_rotate_kernel: Any = triton.jit(_rotate)
_gate_kernel: Any = triton.jit(_gate)
