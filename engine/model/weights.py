"""Config and weights of the llama family (llama, qwen2, qwen3) straight from the files, for the native runners.

Importing transformers takes longer than reading a small model, so nothing here does.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from engine.model.loader import ModelError, Progress

_KINDS = ("llama", "qwen2", "qwen3")


class UnsupportedModel(ModelError):
    """A native runner would compute this model wrongly; the transformers runner may know it."""


@dataclass(frozen=True, slots=True)
class NativeConfig:
    """Sizes of the model. `inverse_frequencies` of the rotary embedding: `[head_dim / 2]` radians per position."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    eps: float
    max_positions: int
    inverse_frequencies: tuple[float, ...]
    tie: bool

    @staticmethod
    def from_folder(folder: Path) -> NativeConfig:
        """Reads `config.json`. Raises `UnsupportedModel` for all that the native runners do not compute."""
        try:
            raw: dict[str, Any] = json.loads((folder / "config.json").read_text())
        except (OSError, ValueError) as error:
            raise ModelError(f"cannot read the model config in {folder}: {error}") from error
        _check(raw)
        heads = raw["num_attention_heads"]
        head_dim = raw.get("head_dim") or raw["hidden_size"] // heads
        return NativeConfig(
            hidden=raw["hidden_size"],
            layers=raw["num_hidden_layers"],
            heads=heads,
            kv_heads=raw.get("num_key_value_heads") or heads,
            head_dim=head_dim,
            intermediate=raw["intermediate_size"],
            vocab=raw["vocab_size"],
            eps=raw.get("rms_norm_eps", 1e-6),
            max_positions=raw["max_position_embeddings"],
            inverse_frequencies=tuple(_inverse_frequencies(raw, head_dim).tolist()),
            tie=raw.get("tie_word_embeddings", False),
        )


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer; matrices are `[outputs, inputs]`, rows of fused ones in the order of their names (q, k, v)."""

    input_norm: torch.Tensor
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    output: torch.Tensor
    post_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


@dataclass(frozen=True, slots=True)
class Weights:
    """The whole model in one dtype on one device; `head` is `embedding` itself where the model ties them."""

    config: NativeConfig
    embedding: torch.Tensor
    layers: list[LayerWeights]
    final_norm: torch.Tensor
    head: torch.Tensor


def load_weights(folder: Path, dtype: torch.dtype, device: torch.device, progress: Progress) -> Weights:
    """Reads the safetensors files of `folder`. On CPU, tensors that need no conversion stay mapped from the file.

    Raises `UnsupportedModel` (see `NativeConfig.from_folder`) or `ModelError`.
    """
    progress("loading model", 0.0)
    config = NativeConfig.from_folder(folder)
    with _open_tensors(folder, dtype, device) as tensors:
        layers = []
        for index in range(config.layers):
            layers.append(_layer(tensors, f"model.layers.{index}."))
            progress("loading model", (index + 1) / (config.layers + 1))
        embedding = tensors.get("model.embed_tokens.weight")
        weights = Weights(
            config=config,
            embedding=embedding,
            layers=layers,
            final_norm=tensors.get("model.norm.weight"),
            head=embedding if config.tie else tensors.get("lm_head.weight"),
        )
    _check_shapes(weights)
    progress("loading model", 1.0)
    return weights


def stored_dtype(folder: Path) -> torch.dtype:
    """What the embedding has in the files of `folder`: float32, or bfloat16 for all that is narrower. Raises
    `ModelError`."""
    with _open_tensors(folder, torch.bfloat16, torch.device("cpu")) as tensors:
        wide = tensors.is_float32("model.embed_tokens.weight")
    return torch.float32 if wide else torch.bfloat16


class _Tensors:
    """Tensors by name over all shards."""

    def __init__(self, files: dict[str, Any], dtype: torch.dtype, device: torch.device) -> None:
        self._files, self._dtype, self._device = files, dtype, device

    def find(self, name: str) -> torch.Tensor | None:
        return self.get(name) if name in self._files else None

    def is_float32(self, name: str) -> bool:
        return name in self._files and str(self._files[name].get_slice(name).get_dtype()) == "F32"

    def get(self, name: str) -> torch.Tensor:
        if name not in self._files:
            raise ModelError(f"the model's files have no tensor {name}")
        tensor: torch.Tensor = self._files[name].get_tensor(name)
        return tensor.to(self._device, self._dtype)

    def fused(self, *names: str) -> torch.Tensor:
        return torch.cat([self.get(name) for name in names])


@contextmanager
def _open_tensors(folder: Path, dtype: torch.dtype, device: torch.device) -> Iterator[_Tensors]:
    paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        raise ModelError(f"{folder} has no safetensors files")
    with ExitStack() as stack:
        files: dict[str, Any] = {}
        for path in paths:
            try:
                file: Any = stack.enter_context(safe_open(path, "pt"))
            except Exception as error:
                raise ModelError(f"cannot read {path}: {error}") from error
            files |= dict.fromkeys(file.keys(), file)
        yield _Tensors(files, dtype, device)


def _layer(tensors: _Tensors, prefix: str) -> LayerWeights:
    attention, mlp = prefix + "self_attn.", prefix + "mlp."
    q_bias = attention + "q_proj.bias"
    biased = tensors.find(q_bias) is not None
    return LayerWeights(
        input_norm=tensors.get(prefix + "input_layernorm.weight"),
        qkv=tensors.fused(*(f"{attention}{name}_proj.weight" for name in "qkv")),
        qkv_bias=tensors.fused(*(f"{attention}{name}_proj.bias" for name in "qkv")) if biased else None,
        q_norm=tensors.find(attention + "q_norm.weight"),
        k_norm=tensors.find(attention + "k_norm.weight"),
        output=tensors.get(attention + "o_proj.weight"),
        post_norm=tensors.get(prefix + "post_attention_layernorm.weight"),
        gate_up=tensors.fused(mlp + "gate_proj.weight", mlp + "up_proj.weight"),
        down=tensors.get(mlp + "down_proj.weight"),
    )


def _check(raw: dict[str, Any]) -> None:
    kind = raw.get("model_type")
    if kind not in _KINDS:
        raise UnsupportedModel(f"the native runner knows {', '.join(_KINDS)}, not {kind}")
    layer_types = set(raw.get("layer_types") or ["full_attention"])
    sliding = layer_types != {"full_attention"} or (not raw.get("layer_types") and raw.get("use_sliding_window", False))
    # Qwen2 always has its q, k and v biases and never says so here; these switches also add one after attention.
    unsupported = {
        "an activation other than silu": raw.get("hidden_act", "silu") != "silu",
        "sliding windows": sliding,
        "attention_bias": raw.get("attention_bias", False),
        "mlp_bias": raw.get("mlp_bias", False),
        "quantised weights": raw.get("quantization_config") is not None,
    }
    for what, present in unsupported.items():
        if present:
            raise UnsupportedModel(f"{kind} with {what} needs the transformers runner")


def _check_shapes(weights: Weights) -> None:
    """A file that does not fit its config must not reach kernels that trust the sizes."""
    c = weights.config
    q, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
    expected: list[tuple[torch.Tensor | None, tuple[int, ...]]] = [
        (weights.embedding, (c.vocab, c.hidden)),
        (weights.head, (c.vocab, c.hidden)),
        (weights.final_norm, (c.hidden,)),
    ]
    for layer in weights.layers:
        expected += [
            (layer.input_norm, (c.hidden,)),
            (layer.qkv, (q + 2 * kv, c.hidden)),
            (layer.qkv_bias, (q + 2 * kv,)),
            (layer.q_norm, (c.head_dim,)),
            (layer.k_norm, (c.head_dim,)),
            (layer.output, (c.hidden, q)),
            (layer.post_norm, (c.hidden,)),
            (layer.gate_up, (2 * c.intermediate, c.hidden)),
            (layer.down, (c.hidden, c.intermediate)),
        ]
    for tensor, shape in expected:
        if tensor is not None and tuple(tensor.shape) != shape:
            raise ModelError(f"a tensor of the model has the shape {tuple(tensor.shape)}, its config says {shape}")


def _inverse_frequencies(raw: dict[str, Any], head_dim: int) -> torch.Tensor:
    """Float32, in transformers' order of operations. `rope_parameters` is what transformers 5 writes."""
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    kind = rope.get("rope_type") or rope.get("type") or "default"
    theta = rope.get("rope_theta") or raw.get("rope_theta") or 10000.0
    partial = rope.get("partial_rotary_factor") or raw.get("partial_rotary_factor") or 1.0
    if kind not in ("default", "llama3") or partial != 1.0:
        raise UnsupportedModel(f"rotary embedding of type {kind} (share {partial}) needs the transformers runner")
    frequencies: torch.Tensor = 1.0 / (theta ** (torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim))
    return _llama3_scaled(frequencies, rope) if kind == "llama3" else frequencies


def _llama3_scaled(frequencies: torch.Tensor, rope: dict[str, Any]) -> torch.Tensor:
    """Llama 3.1's stretch: long waves slowed by `factor`, short ones kept, those between interpolated."""
    factor, low, high = rope["factor"], rope["low_freq_factor"], rope["high_freq_factor"]
    turns = rope["original_max_position_embeddings"] / (2 * math.pi / frequencies)
    smooth = (turns - low) / (high - low)
    between = (1 - smooth) * frequencies / factor + smooth * frequencies
    scaled = torch.where(turns < low, frequencies / factor, frequencies)
    return torch.where((turns >= low) & (turns <= high), between, scaled)
