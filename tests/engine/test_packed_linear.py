"""Packed linear layers against plain ones."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from engine.model.packed_linear import can_pack, pack_linears

CPU = torch.device("cpu")


@pytest.mark.skipif(not can_pack(torch.bfloat16, CPU), reason="this CPU has no bfloat16 kernels")
@pytest.mark.parametrize("rows", [1, 7, 64])
@pytest.mark.parametrize("bias", [True, False])
def test_packed_equals_plain_up_to_rounding(rows: int, bias: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(48, 32, bias=bias), nn.Sequential(nn.Linear(32, 16, bias=bias))).bfloat16()
    inputs = torch.randn(1, rows, 48, dtype=torch.bfloat16)
    with torch.inference_mode():
        plain = model(inputs)
        pack_linears(model)
        packed = model(inputs)
    assert not any(type(module) is nn.Linear for module in model.modules())
    torch.testing.assert_close(packed, plain, atol=0.02, rtol=0.02)


def test_float32_is_left_alone() -> None:
    assert not can_pack(torch.float32, CPU)
