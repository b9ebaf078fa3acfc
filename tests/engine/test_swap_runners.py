"""KV that has been moved to the host and back, to other blocks, is the KV it was, in each runner's layout."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.kv.host_tier import make_host_tier
from engine.model.batch import Batch, Runner, SequenceInput
from engine.model.cpu.build import build_kernels
from engine.model.native_cpu import NativeCpuRunner
from engine.model.native_cuda import NativeCudaRunner
from engine.model.runner_transformers import TransformersRunner
from engine.model.weights import load_weights
from engine.settings import EngineSettings
from tests.engine.driver import load
from tests.engine.test_native_cpu import CONFIGS, random_text

BLOCKS, LENGTH = 24, 150
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(3)
    causal_lm: Any = AutoModelForCausalLM
    folder = tmp_path_factory.mktemp("llama")
    causal_lm.from_config(CONFIGS["llama"], dtype=torch.float32).save_pretrained(folder)
    return folder


def native_cpu(folder: Path, dtype: torch.dtype) -> Runner:
    weights = load_weights(folder, dtype, CPU, lambda stage, fraction: None)
    return NativeCpuRunner(weights, BLOCKS, 1, "none", build_kernels(EngineSettings().model_cache))


def native_cuda(folder: Path, dtype: torch.dtype) -> Runner:
    return NativeCudaRunner(load_weights(folder, dtype, CPU, lambda stage, fraction: None), BLOCKS)


def transformers(folder: Path, dtype: torch.dtype) -> Runner:
    return TransformersRunner(load(folder, dtype), BLOCKS, 16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("make", [native_cpu, native_cuda, transformers])
def test_the_next_token_is_the_same_after_a_move(
    make: Callable[[Path, torch.dtype], Runner], dtype: torch.dtype, folder: Path
) -> None:
    rng = random.Random(5)
    runner = make(folder, dtype)
    text, order = random_text(rng, LENGTH + 1), rng.sample(range(BLOCKS), BLOCKS)
    blocks, others = order[: BLOCKS // 2], order[BLOCKS // 2 :]
    runner.run(Batch([SequenceInput(text[:LENGTH], 0, blocks, 0)]))
    tier = make_host_tier(runner.kv_planes, BLOCKS, gbps=None, clock=time.time)
    assert tier.block_bytes == runner.bytes_per_token * runner.block_size
    slots = rng.sample(tier.slots.allocate(BLOCKS), len(blocks))
    move(tier.start_out, tier, list(zip(blocks, slots, strict=True)))
    expected = runner.run(Batch([SequenceInput(text[LENGTH:], LENGTH, blocks, 1)])).clone()
    # Whoever gets the blocks meanwhile writes to them.
    runner.run(Batch([SequenceInput(random_text(rng, LENGTH), 0, blocks, 0)]))
    move(tier.start_in, tier, list(zip(others, slots, strict=True)))
    found = runner.run(Batch([SequenceInput(text[LENGTH:], LENGTH, others, 1)]))
    assert torch.equal(found, expected)
    tier.close()
    runner.close()


def move(start: Any, tier: Any, pairs: list[tuple[int, int]]) -> None:
    start(pairs)
    tier.synchronize()
    assert [ticket.state for ticket in tier.poll()] == ["done"]
