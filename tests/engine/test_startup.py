"""From settings to a warm engine."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Literal

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.core import EngineCore
from engine.model.batch import Batch, SequenceInput
from engine.model.cpu.build import build_kernels
from engine.model.loader import ModelError
from engine.model.native_cpu import NativeCpuRunner
from engine.model.weights import load_weights
from engine.settings import EngineSettings
from engine.startup import build_engine
from tests.engine.driver import load_reference
from tests.engine.test_native_cuda import save_model

GROUP = 32
TEXT = [5, 17, 3, 88, 41, 9, 9, 30, 2, 64]


def start(folder: Path, *, weights: Literal["auto", "q4"], dtype: Literal["float32", "bfloat16"]) -> EngineCore:
    settings = EngineSettings(model=str(folder), weights=weights, dtype=dtype, runner="native", kv_tokens=256)
    core, _ = build_engine(settings, lambda stage, done: None, lambda line: None)
    return core


def logits_of(runner: NativeCpuRunner) -> torch.Tensor:
    """Of each token, decoded one at a time: where the four bits are used as they are."""
    rows = [runner.run(Batch([SequenceInput([token], i, [0], 1)]))[0].clone() for i, token in enumerate(TEXT)]
    return torch.stack(rows)


def on_four_bits(matrix: torch.Tensor) -> torch.Tensor:
    """The nearest values of GGUF's Q4_1: scale * (0 ... 15) + minimum in each group, both in half precision."""
    groups = matrix.reshape(-1, GROUP)
    low = groups.amin(1, keepdim=True).half().float()
    scale = ((groups.amax(1, keepdim=True) - low) / 15).half().float()
    return (((groups - low) / scale).round().clamp(0, 15) * scale + low).reshape(matrix.shape)


@pytest.fixture(scope="module")
def four_bit_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights of the layers in float32, as they come out of a file in Q4_1."""
    folder = save_model("llama", tmp_path_factory.mktemp("four_bits"))
    path = folder / "model.safetensors"
    tensors = {
        name: on_four_bits(tensor) if name.endswith("_proj.weight") else tensor
        for name, tensor in load_file(path).items()
    }
    save_file(tensors, path, metadata={"format": "pt"})
    return folder


def test_four_bits_of_a_file_come_back_as_they_were(four_bit_folder: Path) -> None:
    core = start(four_bit_folder, weights="q4", dtype="float32")
    (model,) = core.models
    assert isinstance(model.runner, NativeCpuRunner)
    found = logits_of(model.runner)
    with torch.inference_mode():
        expected = load_reference(four_bit_folder)(torch.tensor([TEXT])).logits[0]
    # What is left is the head, in eight bits.
    assert (found - expected).abs().max() < 0.02 * expected.std()


def test_quantised_weights_are_made_of_the_exact_ones_whatever_the_dtype(four_bit_folder: Path) -> None:
    core = start(four_bit_folder, weights="q4", dtype="bfloat16")
    (model,) = core.models
    assert isinstance(model.runner, NativeCpuRunner)
    library = build_kernels(EngineSettings().model_cache)

    def made_of(dtype: torch.dtype) -> torch.Tensor:
        weights = load_weights(four_bit_folder, dtype, torch.device("cpu"), lambda stage, done: None)
        return logits_of(NativeCpuRunner(weights, 16, 2, "q4", library, torch.bfloat16))

    found = logits_of(model.runner)
    assert torch.equal(found, made_of(torch.float32))
    assert not torch.equal(found, made_of(torch.bfloat16))


def test_a_model_whose_first_steps_fail_does_not_start(tmp_path: Path) -> None:
    folder = save_model("llama", tmp_path / "model")
    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors["model.norm.weight"].fill_(math.nan)
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(ModelError, match="first steps failed"):
        start(folder, weights="auto", dtype="float32")


def test_a_model_that_refuses_the_first_tokens_does_not_start(tmp_path: Path) -> None:
    folder = save_model("llama", tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 4}))
    with pytest.raises(ModelError, match="cannot be served"):
        start(folder, weights="auto", dtype="float32")
