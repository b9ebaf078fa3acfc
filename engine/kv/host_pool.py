"""Blocks of KV in host memory: the tier below the device."""

from __future__ import annotations

import torch

from engine.kv.slots import SlotPool


class HostPool(SlotPool):
    """Memory for `count` blocks, each one piece that holds K and V of all layers, so that it moves in one transfer.

    The operating system commits the memory on first use. For transfers from and to a GPU it has to be pinned, which
    `CudaCopier` does.
    """

    def __init__(self, count: int, block_bytes: int) -> None:
        """Raises `MemoryError` when there is not so much address space."""
        super().__init__(count)
        self.block_bytes = block_bytes
        try:
            self.memory = torch.empty(count, block_bytes, dtype=torch.uint8)
        except RuntimeError as error:
            raise MemoryError(f"no memory for {count} host KV blocks of {block_bytes} bytes") from error
