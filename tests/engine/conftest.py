"""Models for the engine's tests: tiny random ones of each supported kind, and the real default."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

from engine.model.loader import prepare_model
from engine.settings import EngineSettings
from tests.engine.driver import load, load_reference

CONFIGS = {"llama": LlamaConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}
VOCAB = 96


@pytest.fixture(scope="session", params=sorted(CONFIGS))
def tiny_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two random layers with grouped queries; large weights, so that the best token is far from the second."""
    return save_tiny(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="session")
def llama_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny("llama", tmp_path_factory.mktemp("tiny_llama"))


@pytest.fixture(scope="session")
def tiny(llama_folder: Path) -> Any:
    return load(llama_folder)


@pytest.fixture(scope="session")
def tiny_reference(llama_folder: Path) -> Any:
    return load_reference(llama_folder)


@pytest.fixture(scope="session")
def real_folder() -> Path:
    """SmolLM2-135M-Instruct, converted."""
    settings = EngineSettings(model="default")
    return prepare_model("default", settings.model_cache, lambda stage, fraction: None)


def save_tiny(kind: str, folder: Path) -> Path:
    config = CONFIGS[kind](
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=512,
        initializer_range=0.3,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    torch.manual_seed(7)
    causal_lm: Any = AutoModelForCausalLM
    causal_lm.from_config(config, dtype=torch.float32).save_pretrained(folder)
    return folder
