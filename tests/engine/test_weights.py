"""Reading config and weights without transformers gives what transformers reads."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from engine.model.loader import ModelError
from engine.model.weights import NativeConfig, UnsupportedModel, Weights, load_weights


def load(folder: Path, dtype: torch.dtype = torch.float32) -> Weights:
    return load_weights(folder, dtype, torch.device("cpu"), lambda stage, fraction: None)


def edited(folder: Path, target: Path, **changes: Any) -> Path:
    """A copy of the model folder with a changed config."""
    shutil.copytree(folder, target)
    raw = json.loads((folder / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(raw | changes))
    return target


def test_fused_matrices_hold_the_parts_in_order(tiny_folder: Path) -> None:
    auto: Any = AutoModelForCausalLM
    state = auto.from_pretrained(tiny_folder).state_dict()
    weights = load(tiny_folder)
    assert torch.equal(weights.embedding, state["model.embed_tokens.weight"])
    assert torch.equal(weights.head, state["lm_head.weight"])
    assert torch.equal(weights.final_norm, state["model.norm.weight"])
    for index, layer in enumerate(weights.layers):
        part = {name.split(f"layers.{index}.")[1]: t for name, t in state.items() if f"layers.{index}." in name}
        assert torch.equal(layer.qkv, torch.cat([part[f"self_attn.{n}_proj.weight"] for n in "qkv"]))
        assert torch.equal(layer.gate_up, torch.cat([part["mlp.gate_proj.weight"], part["mlp.up_proj.weight"]]))
        assert torch.equal(layer.output, part["self_attn.o_proj.weight"])
        assert torch.equal(layer.down, part["mlp.down_proj.weight"])
        assert (layer.qkv_bias is not None) == ("self_attn.q_proj.bias" in part)
        assert (layer.q_norm is not None) == ("self_attn.q_norm.weight" in part)


def test_config_of_each_kind(tiny_folder: Path) -> None:
    config = NativeConfig.from_folder(tiny_folder)
    sizes = (config.hidden, config.layers, config.heads, config.kv_heads, config.head_dim, config.intermediate)
    assert sizes == (32, 2, 4, 2, 8, 64)
    assert len(config.inverse_frequencies) == 4


def test_weights_are_converted_to_the_wanted_dtype(llama_folder: Path) -> None:
    weights = load(llama_folder, torch.bfloat16)
    assert weights.embedding.dtype == weights.layers[0].gate_up.dtype == weights.final_norm.dtype == torch.bfloat16


def test_sharded_files_are_read_as_one(llama_folder: Path, tmp_path: Path) -> None:
    auto: Any = AutoModelForCausalLM
    auto.from_pretrained(llama_folder).save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert torch.equal(load(tmp_path).layers[1].down, load(llama_folder).layers[1].down)


def test_llama3_scaling_equals_transformers(llama_folder: Path, tmp_path: Path) -> None:
    rope = {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    config: Any = LlamaConfig(
        hidden_size=64,
        num_attention_heads=1,
        num_key_value_heads=1,
        intermediate_size=32,
        num_hidden_layers=1,
        vocab_size=8,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        rope_parameters=rope,
    )
    expected: Any = LlamaForCausalLM(config).model.rotary_emb.inv_freq
    sizes = {"num_attention_heads": 1, "head_dim": 64}
    new_style = edited(llama_folder, tmp_path / "new", rope_parameters=rope, **sizes)
    old_style = edited(llama_folder, tmp_path / "old", rope_parameters=None, rope_scaling=rope, **sizes)
    for folder in (new_style, old_style):
        assert torch.equal(torch.tensor(NativeConfig.from_folder(folder).inverse_frequencies), expected)


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": "gemma3_text"},
        {"hidden_act": "gelu"},
        {"layer_types": ["full_attention", "sliding_attention"]},
        {"use_sliding_window": True},
        {"attention_bias": True},
        {"mlp_bias": True},
        {"quantization_config": {"quant_method": "awq"}},
        {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}},
        {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
    ],
    ids=str,
)
def test_what_would_be_computed_wrongly_is_refused(llama_folder: Path, tmp_path: Path, change: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModel):
        NativeConfig.from_folder(edited(llama_folder, tmp_path / "model", **change))


def test_files_that_do_not_fit_the_config_are_refused(llama_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="shape"):
        load(edited(llama_folder, tmp_path / "wrong", intermediate_size=48))
    with pytest.raises(ModelError, match=r"layers\.2"):
        load(edited(llama_folder, tmp_path / "deeper", num_hidden_layers=3))
    broken = edited(llama_folder, tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"no such thing")
    with pytest.raises(ModelError, match="cannot read"):
        load(broken)


def test_transformers_is_not_imported() -> None:
    code = "import engine.model.weights, sys; assert 'transformers' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
