"""The Triton kernels against plain torch, in Triton's interpreter; and whether they compile for a GPU.

Triton decides whether it interprets when it is imported, which other tests' imports do: these run in a process of their
own, which `test_the_kernels_in_the_interpreter` starts.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.model.batch import Batch
from engine.model.layer_ops import Heads, Rows, TorchOps
from engine.model.weights import LayerWeights
from tests.engine.test_native_cpu import random_text, reference_logits
from tests.engine.test_native_cuda import chunks, make_runner, save_model

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if INTERPRETED:
    from engine.model.layer_ops_triton import TritonOps
    from engine.model.paged_attention_triton import paged_attention

interpreted = pytest.mark.skipif(not INTERPRETED, reason="runs inside test_the_kernels_in_the_interpreter")

BLOCK_SIZE = 16
PLAIN = TorchOps()


@pytest.mark.skipif(INTERPRETED, reason="is what started this process")
def test_the_kernels_in_the_interpreter() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-k", "not compile", "-p", "no:cacheprovider", __file__]
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout


dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def assert_near(found: Any, expected: Any, dtype: torch.dtype) -> None:
    tolerance = 1e-5 if dtype == torch.float32 else 0.02
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)


def make_rows(lengths: list[int], dim: int, blocks: int) -> Rows:
    """Contexts of these lengths over mixed-up blocks, one row each; the first block is left alone."""
    table, starts = [0], []
    free = (torch.randperm(blocks - 1) + 1).tolist()
    for length in lengths:
        starts.append(len(table))
        table += [free.pop() for _ in range(-(-length // BLOCK_SIZE))]
    positions = torch.tensor(lengths, dtype=torch.int32) - 1
    last = torch.tensor(starts) + positions // BLOCK_SIZE
    slots = torch.tensor(table)[last] * BLOCK_SIZE + positions % BLOCK_SIZE
    angles = positions.float().unsqueeze(1) * torch.rand(dim // 2)
    as_int = [torch.tensor(values, dtype=torch.int32) for values in (starts, table)]
    return Rows(positions, as_int[0], as_int[1], slots, angles.cos(), angles.sin())


@interpreted
# The interpreter multiplies matrices of bfloat16 as if their bits were integers; float16 takes the same way.
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("splits", [1, 8])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(6, 2, 24), (4, 4, 16), (32, 1, 64)])
def test_attention_over_blocks(dtype: torch.dtype, splits: int, heads: int, kv_heads: int, dim: int) -> None:
    """Contexts that end inside a tile, at its end, and after one token; NaN wherever no token is."""
    lengths = [1, 16, 64, 65, 140]
    rows = make_rows(lengths, dim, blocks=40)
    pools = torch.full((2, 40 * BLOCK_SIZE, kv_heads, dim), torch.nan).to(dtype)
    for length, start in zip(lengths, rows.starts.tolist(), strict=True):
        for t in range(length):
            slot = int(rows.table[start + t // BLOCK_SIZE]) * BLOCK_SIZE + t % BLOCK_SIZE
            pools[:, slot] = torch.randn(2, kv_heads, dim).to(dtype)
    keys, values = pools.view(2, 40, BLOCK_SIZE, kv_heads, dim)
    query = torch.randn(len(lengths), heads, dim).to(dtype)
    attended = paged_attention(query, keys, values, rows.table, rows.starts, rows.positions, splits)
    assert_near(attended, PLAIN.attend(query, keys, values, rows), dtype)


@pytest.mark.parametrize("normed", [False, True])
@interpreted
@dtypes
def test_rotation_and_storage(dtype: torch.dtype, normed: bool) -> None:
    heads = Heads(query=7, kv=3, dim=24, eps=1e-6)
    rows = make_rows([5, 100, 33], heads.dim, blocks=16)
    norms = torch.randn(2, heads.dim).to(dtype).unbind() if normed else (None, None)
    layer = layer_with_norms(*norms)
    qkv = torch.randn(3, 13 * heads.dim).to(dtype)
    found = []
    for ops in (PLAIN, TritonOps()):
        pools = torch.zeros(2, 16, BLOCK_SIZE, heads.kv, heads.dim, dtype=dtype)
        query = ops.rotate_and_store(qkv, layer, heads, rows, *pools)
        found.append((query, pools))
    assert found[0][1].count_nonzero() == 2 * 3 * heads.kv * heads.dim
    assert_near(found[1], found[0], dtype)


def layer_with_norms(q_norm: torch.Tensor | None, k_norm: torch.Tensor | None) -> LayerWeights:
    nothing = torch.empty(0)
    return LayerWeights(nothing, nothing, None, q_norm, k_norm, nothing, nothing, nothing, nothing)


@interpreted
@dtypes
@pytest.mark.parametrize("adds", [False, True])
def test_sum_and_norm(dtype: torch.dtype, adds: bool) -> None:
    residual, delta = torch.randn(2, 5, 100).to(dtype)
    weight, copy = torch.randn(100).to(dtype), residual.clone()
    expected = PLAIN.add_norm(residual, delta if adds else None, weight, 1e-5)
    normed = TritonOps().add_norm(copy, delta if adds else None, weight, 1e-5)
    assert_near((normed, copy), (expected, residual), dtype)


@interpreted
@dtypes
def test_gate(dtype: torch.dtype) -> None:
    gate_up = torch.randn(3, 2 * 1500).to(dtype)
    assert_near(TritonOps().gate(gate_up), PLAIN.gate(gate_up), dtype)


@interpreted
@dtypes
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("rows", [1, 3])
def test_product(dtype: torch.dtype, biased: bool, rows: int) -> None:
    x, weight = (torch.randn(rows, 1100) / 33).to(dtype), torch.randn(37, 1100).to(dtype)
    bias = torch.randn(37).to(dtype) if biased else None
    product = TritonOps().linear(x, weight, bias)
    assert_near(product, PLAIN.linear(x, weight, bias), dtype)


@interpreted
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_a_model_through_the_kernels(kind: str, tmp_path: Path) -> None:
    """Prefill, decode and a draft of two tokens against transformers. Short: a row takes a tenth of a second here."""
    save_model(kind, tmp_path)
    text = random_text(random.Random(9), 21)
    pieces = chunks(text, iter([18, 1, 2]), [3, 9])
    runner = make_runner(tmp_path, ops=TritonOps())
    logits = torch.cat([runner.run(Batch([piece])).clone() for piece in pieces])
    torch.testing.assert_close(logits, reference_logits(tmp_path, text), atol=2e-3, rtol=1e-3)


@pytest.mark.skipif(INTERPRETED, reason="interpreted kernels cannot be compiled")
def test_all_kernels_compile_for_a_gpu() -> None:
    """With the compiler that Triton brings along, for compute capability 9.0; no GPU is needed for that."""
    script = Path(__file__).with_name("compile_triton_kernels.py")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["_attend", "_attend", "_combine", "_vector", "_add_norm", "_gate", "_rotate"]
