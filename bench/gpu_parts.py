"""The parts of the GPU check by name, and the sizes they run in."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig

from engine.model.weights import LayerWeights, NativeConfig, Weights

Emit = Callable[[str, Any], None]

LLAMA_3_1_8B: dict[str, Any] = {
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}
TINY = LLAMA_3_1_8B | {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}


@dataclass(frozen=True, slots=True)
class Sizes:
    """Tokens, unless the name says otherwise. `step_tokens`: the budgets of a step that prefill is measured with."""

    model: dict[str, Any]
    prompt: int
    decode: int
    prefill: int
    step_tokens: tuple[int, ...]
    copied_bytes: int
    matrix: int
    texts: tuple[int, ...]
    answers: int
    swapped_blocks: int

    def config(self) -> LlamaConfig:
        """For transformers. Token 1 begins texts; nothing ends them."""
        return LlamaConfig(**self.model, bos_token_id=1, eos_token_id=None, pad_token_id=0)


GPU = Sizes(LLAMA_3_1_8B, 128, 256, 8192, (2048, 8192), 4 << 30, 8192, (300, 700, 77, 41), 64, 256)
DRY = Sizes(TINY, 16, 8, 64, (32,), 1 << 20, 128, (40, 21), 8, 8)


def run(part: str, dry_run: bool, emit: Emit) -> None:
    """Runs one part; `emit` is given each result when it is known. Raises whatever goes wrong."""
    from bench import gpu_correct, gpu_speed

    if not dry_run and not torch.cuda.is_available():
        raise RuntimeError("PyTorch finds no CUDA device; --dry-run runs on the CPU")
    device = torch.device("cpu" if dry_run else "cuda")
    parts = {
        "logits": gpu_correct.logits,
        "run_ahead": gpu_correct.run_ahead,
        "swap": gpu_correct.swap,
        "native": gpu_speed.native,
        "transformers": gpu_speed.transformers,
    }
    parts[part](DRY if dry_run else GPU, device, emit)


def native_config(config: Any) -> NativeConfig:
    """What the native runner reads from the folder of such a model."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config.to_dict()))
        return NativeConfig.from_folder(Path(folder))


def random_weights(config: NativeConfig, dtype: torch.dtype, device: torch.device) -> Weights:
    """Made on the device: small normal numbers, norms of one."""

    def matrix(outputs: int, inputs: int) -> torch.Tensor:
        return torch.randn(outputs, inputs, dtype=dtype, device=device) * 0.02

    def layer() -> LayerWeights:
        query, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
        return LayerWeights(
            input_norm=ones,
            qkv=matrix(query + 2 * kv, config.hidden),
            qkv_bias=None,
            q_norm=None,
            k_norm=None,
            output=matrix(config.hidden, query),
            post_norm=ones,
            gate_up=matrix(2 * config.intermediate, config.hidden),
            down=matrix(config.hidden, config.intermediate),
        )

    ones = torch.ones(config.hidden, dtype=dtype, device=device)
    layers = [layer() for _ in range(config.layers)]
    return Weights(config, matrix(config.vocab, config.hidden), layers, ones, matrix(config.vocab, config.hidden))
