"""The least work of a step, against a model of which all can be counted."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import AutoModelForCausalLM, LlamaConfig

from bench.step_cost import step_cost
from engine.model.weights import NativeConfig


@pytest.fixture
def config() -> NativeConfig:
    return NativeConfig(
        hidden=32,
        layers=2,
        heads=4,
        kv_heads=2,
        head_dim=16,
        intermediate=64,
        vocab=100,
        eps=1e-6,
        max_positions=64,
        inverse_frequencies=(),
        tie=False,
    )


def test_weights_are_all_matrices_but_the_embedding(config: NativeConfig) -> None:
    causal_lm: Any = AutoModelForCausalLM
    model = causal_lm.from_config(
        LlamaConfig(
            vocab_size=100,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            tie_word_embeddings=False,
        )
    )
    matrices = sum(p.numel() for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name)
    cost = step_cost(config, "bf16", 3, 0, 512)
    assert cost.weight_bytes == 2 * matrices
    assert cost.flop == 2 * 3 * matrices


def test_context_costs_its_kv_and_two_products_a_head(config: NativeConfig) -> None:
    empty, full = step_cost(config, "fp32", 1, 0, 512), step_cost(config, "fp32", 1, 10, 512)
    assert full.kv_bytes - empty.kv_bytes == 10 * 512
    assert full.flop - empty.flop == 2 * 2 * 10 * 2 * 4 * 16


def test_quantised_weights_are_read_with_their_scales_and_the_head_in_eight_bits(config: NativeConfig) -> None:
    layers, head = 2 * (32 * 64 * 2 + 32 * 32 * 2 + 3 * 32 * 64), 100 * 32
    assert step_cost(config, "q4", 1, 0, 512).weight_bytes == layers * 20 / 32 + head * 34 / 32
    assert step_cost(config, "int8", 1, 0, 512).weight_bytes == (layers + head) * 34 / 32
