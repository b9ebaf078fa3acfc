"""Finding and refusing models; the conversion of the default one is exercised by the tests of the real model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DiffLlamaConfig,
    Gemma2Config,
    GPT2Config,
    GptOssConfig,
    Qwen2MoeConfig,
)

from engine.model.loader import ModelError, load_model, model_name, prepare_model

CPU = torch.device("cpu")
ROOT = Path(__file__).parents[2]


def quiet(stage: str, fraction: float) -> None:
    pass


def test_a_folder_is_used_where_it_is(llama_folder: Path, tmp_path: Path) -> None:
    assert prepare_model(str(llama_folder), tmp_path, quiet) == llama_folder
    assert model_name(str(llama_folder)) == llama_folder.name


def test_names_lose_the_quantisation(tmp_path: Path) -> None:
    assert model_name("default") == "SmolLM2-135M-Instruct"
    assert model_name("Qwen/Qwen2.5-7B-Instruct") == "Qwen/Qwen2.5-7B-Instruct"
    for quantisation in ("Q4_K_M", "q8_0", "F16", "IQ2_XS"):
        file = tmp_path / f"Some-Model-7B-{quantisation}.gguf"
        file.touch()
        assert model_name(str(file)) == "Some-Model-7B"


@pytest.mark.parametrize("model", ["/no/such/folder", "missing.gguf", "a/b/c"])
def test_missing_models_are_named(model: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such"):
        prepare_model(model, tmp_path, quiet)


def test_a_broken_gguf_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    file = tmp_path / "broken.gguf"
    file.write_bytes(b"GGUF but not really")
    with pytest.raises(ModelError, match="cannot convert"):
        prepare_model(str(file), tmp_path / "cache", quiet)
    assert not [path for path in (tmp_path / "cache" / "models").iterdir() if path.is_dir()]


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (GPT2Config(n_layer=1), "KV heads"),
    ],
)
def test_what_would_be_computed_wrongly_is_refused(config: Any, reason: str, tmp_path: Path) -> None:
    config.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=reason):
        load_model(tmp_path, torch.float32, CPU, quiet)


TINY: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "initializer_range": 0.3,
    "pad_token_id": 0,
}


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (Gemma2Config(**TINY), "soft capping or sinks"),
        (GptOssConfig(**TINY, num_local_experts=2, num_experts_per_tok=1), "soft capping or sinks"),
        (DiffLlamaConfig(**TINY), "differs"),
        (Qwen2MoeConfig(**TINY, use_sliding_window=True, max_window_layers=1, num_experts_per_tok=1), "sliding window"),
    ],
    ids=["gemma2", "gpt_oss", "diffllama", "qwen2_moe"],
)
def test_a_model_whose_attention_would_differ_is_refused(config: Any, reason: str, tmp_path: Path) -> None:
    causal_lm: Any = AutoModelForCausalLM
    causal_lm.from_config(config, dtype=torch.float32).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=reason):
        load_model(tmp_path, torch.float32, CPU, quiet)


def test_converted_model_and_tokenizer_are_complete_and_need_no_torch(real_folder: Path) -> None:
    script = (
        "import sys; from engine.model.loader import prepare_model; from engine.settings import EngineSettings;"
        "print(prepare_model('default', EngineSettings().model_cache, print)); import engine.client;"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()) == real_folder
    tokenizer = AutoTokenizer.from_pretrained(real_folder)
    text = "<|im_start|>user\nnaïve 東京 🥗  x = 1_000\n<|im_end|>"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.eos_token == "<|im_end|>"
