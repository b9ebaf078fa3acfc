"""KV pools of any layout as *planes*: tensors `[blocks, ...]` that together hold all of a block, each a part of it.

A block in memory below the device is one piece of bytes, its parts one after another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch

from engine.kv.tensors import KvTensors

Planes: TypeAlias = Sequence[torch.Tensor]
"""Views of the pool itself: writing to them writes to the pool. Strides are free, but the last dimension is dense."""


def planes_of(kv: KvTensors) -> list[torch.Tensor]:
    """K and V of each layer, `[blocks, kv_heads, block_size, head_dim]`."""
    tensors = [tensor for layer in zip(kv.keys, kv.values, strict=True) for tensor in layer]
    return [t.view(len(t), -1, kv.block_size, t.shape[2]).transpose(0, 1) for t in tensors]


def block_bytes(planes: Planes) -> int:
    """Bytes of one block over all planes."""
    return sum(_part_bytes(plane) for plane in planes)


def in_words(planes: Planes) -> list[torch.Tensor]:
    """The same memory in integers, int64 where all of it can be, else uint8: no copy then looks at what bits mean."""
    whole = all(plane.shape[-1] * plane.element_size() % 8 == 0 for plane in planes)
    return [plane.view(torch.int64 if whole else torch.uint8) for plane in planes]


def parts(memory: torch.Tensor, planes: Planes) -> list[torch.Tensor]:
    """Views of `memory` (uint8 `[slots, block_bytes]`), `[slots, ...]` for each of `planes` (see `in_words`).

    Raises `ValueError` when a block is not as large as its parts.
    """
    if memory.shape[1] != block_bytes(planes):
        raise ValueError(f"blocks of {block_bytes(planes)} bytes do not fit slots of {memory.shape[1]}")
    views: list[torch.Tensor] = []
    start = 0
    for plane in planes:
        end = start + _part_bytes(plane)
        views.append(memory[:, start:end].view(plane.dtype).view(len(memory), *plane.shape[1:]))
        start = end
    return views


def _part_bytes(plane: torch.Tensor) -> int:
    return plane.shape[1:].numel() * plane.element_size()
