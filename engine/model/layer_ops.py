"""What a layer of the native CUDA runner does between its matrix products, in plain torch.

The Triton kernels do the same in fewer passes over memory; these say what, and run on any device. Values are rounded to
the model's dtype where transformers rounds them, except inside the rotary embedding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu

from engine.model.weights import LayerWeights


@dataclass(frozen=True, slots=True)
class Rows:
    """The tokens of a step: row i attends to the first `positions[i] + 1` tokens of the context whose blocks are
    `table[starts[i]], table[starts[i] + 1], ...` (int32). Its own K and V go to `slots[i]` (int64, in tokens).

    `cos` and `sin` are float32 `[rows, head_dim / 2]`.
    """

    positions: torch.Tensor
    starts: torch.Tensor
    table: torch.Tensor
    slots: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor


@dataclass(frozen=True, slots=True)
class Heads:
    """Sizes of attention; `eps` is that of the norms of Q and K, where there are any."""

    query: int
    kv: int
    dim: int
    eps: float


class Ops(Protocol):
    """One way to compute them. `keys` and `values` are a layer's pool, `[blocks, block_size, kv_heads, head_dim]`."""

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """`x @ weight.T + bias`."""
        ...

    def add_norm(
        self, residual: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """Adds `delta` to `residual` in place; returns the RMS norm of the sum."""
        ...

    def rotate_and_store(
        self, qkv: torch.Tensor, layer: LayerWeights, heads: Heads, rows: Rows, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        """Norms and rotates Q and K (`qkv` `[rows, (query + 2 kv) * dim]`); puts K and V into the pool; returns Q,
        `[rows, query, dim]`."""
        ...

    def attend(self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, rows: Rows) -> torch.Tensor:
        """Attention of the first `len(query)` rows over the pool; like `query`, `[rows, heads, dim]`."""
        ...

    def gate(self, gate_up: torch.Tensor) -> torch.Tensor:
        """`silu(gate) * up`."""
        ...


class TorchOps:
    """The plain form. It waits for the device, so on GPUs it is only what the kernels are compared with."""

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """See `Ops`."""
        return linear(x, weight, bias)

    def add_norm(
        self, residual: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """See `Ops`."""
        if delta is not None:
            residual += delta
        return _norm(residual, weight, eps)

    def rotate_and_store(
        self, qkv: torch.Tensor, layer: LayerWeights, heads: Heads, rows: Rows, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        """See `Ops`."""
        by_head = qkv.view(len(qkv), -1, heads.dim)
        query, key, value = torch.split(by_head, [heads.query, heads.kv, heads.kv], dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            query, key = _norm(query, layer.q_norm, heads.eps), _norm(key, layer.k_norm, heads.eps)
        keys.view(-1, heads.kv, heads.dim)[rows.slots] = _rotate(key, rows)
        values.view(-1, heads.kv, heads.dim)[rows.slots] = value
        return _rotate(query, rows)

    def attend(self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, rows: Rows) -> torch.Tensor:
        """See `Ops`."""
        output = torch.empty_like(query)
        block_size = keys.shape[1]
        for i in range(len(query)):
            start, length = int(rows.starts[i]), int(rows.positions[i]) + 1
            blocks = rows.table[start : start + -(-length // block_size)]
            # [1, kv_heads, length, dim]
            k, v = (pool[blocks].flatten(0, 1)[:length].transpose(0, 1).unsqueeze(0) for pool in (keys, values))
            q = query[i].view(1, -1, 1, query.shape[2])
            output[i] = scaled_dot_product_attention(q, k, v, enable_gqa=True).view(query.shape[1:])
        return output

    def gate(self, gate_up: torch.Tensor) -> torch.Tensor:
        """See `Ops`."""
        gate, up = gate_up.chunk(2, dim=-1)
        return silu(gate) * up


def _norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return weight * rms_norm(x.float(), (x.shape[-1],), None, eps).to(x.dtype)


def _rotate(x: torch.Tensor, rows: Rows) -> torch.Tensor:
    """Rotary embedding (Su et al., 2021) with the two halves of a head as the pairs."""
    first, second = x.float().chunk(2, dim=-1)
    cos, sin = rows.cos.unsqueeze(1), rows.sin.unsqueeze(1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)
