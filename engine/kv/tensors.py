"""The tensors behind the block pool: one K and one V per layer, `[kv_heads, slots, head_dim]`.

Slot `block * block_size + offset` holds one token. Heads come first so that a contiguous run of blocks is, per head,
one contiguous matrix.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.context import BlockCopy


class KvTensors:
    """Uninitialised until written; the operating system commits the memory on first use."""

    def __init__(
        self,
        layers: int,
        kv_heads: int,
        head_dim: int,
        blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.block_size = block_size
        self.device = device
        shape = (kv_heads, blocks * block_size, head_dim)
        self.keys = [torch.empty(shape, dtype=dtype, device=device) for _ in range(layers)]
        self.values = [torch.empty(shape, dtype=dtype, device=device) for _ in range(layers)]

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        """Copies whole blocks, in order."""
        size = self.block_size
        for source, target in copies:
            for tensor in (*self.keys, *self.values):
                tensor[:, target * size : (target + 1) * size] = tensor[:, source * size : (source + 1) * size]

    def gather(self, tensor: torch.Tensor, blocks: torch.Tensor, start: int, end: int) -> torch.Tensor:
        """A copy `[kv_heads, end - start, head_dim]` of tokens in scattered `blocks` (int64, on the pool's device)."""
        heads, _, dim = tensor.shape
        paged = tensor.view(heads, -1, self.block_size, dim)
        skipped = start // self.block_size
        copied = paged.index_select(1, blocks[skipped:]).view(heads, -1, dim)
        return copied[:, start - skipped * self.block_size : end - skipped * self.block_size]
