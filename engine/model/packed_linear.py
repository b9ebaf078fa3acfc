"""Linear layers with weights laid out once for oneDNN: bfloat16 on CPU.

With plain weights oneDNN reorders them inside every call, which at few rows costs a quarter of a decode step.
"""

from __future__ import annotations

import torch
from torch import nn


class PackedLinear(nn.Module):
    """Computes what `linear` computes; keeps only the packed weight."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self._weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), None)
        self._bias = None if linear.bias is None else linear.bias.detach()

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = torch.ops.mkldnn._linear_pointwise(rows, self._weight, self._bias, "none", [], "")
        return output


def can_pack(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether packing is possible and worth it; float32 keeps the kernel that exactness is proven with."""
    return device.type == "cpu" and dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()


@torch.no_grad()
def pack_linears(model: nn.Module) -> None:
    """Replaces every linear layer inside `model`."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                setattr(parent, name, PackedLinear(child))
