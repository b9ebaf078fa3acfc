"""Every architecture that goes through transformers' attention interface: greedy equality with `generate` in float32.

Tiny random models, 30 prompts each, computed together in random pieces over scattered blocks, with forks and edits.
Windows are shorter than the prompts, so that sliding layers forget.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    Gemma3TextConfig,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    Phi3Config,
    Qwen2Config,
    Qwen3Config,
)

from engine import messages as m
from tests.engine.driver import Driver, load, load_reference, make_driver, reference_greedy

VOCAB = 96
WINDOW = 11
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
CONFIGS: dict[str, Any] = {
    "llama": LlamaConfig(**SIZES, num_hidden_layers=2, head_dim=8),
    "qwen2": Qwen2Config(**SIZES, num_hidden_layers=2),
    "qwen3": Qwen3Config(**SIZES, num_hidden_layers=2, head_dim=8),
    "gemma3": Gemma3TextConfig(
        **SIZES,
        num_hidden_layers=4,
        head_dim=8,
        query_pre_attn_scalar=8,
        sliding_window=WINDOW,
        layer_types=["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
    ),
    "mistral": MistralConfig(**SIZES, num_hidden_layers=2, head_dim=8, sliding_window=WINDOW),
    "phi3": Phi3Config(**SIZES, num_hidden_layers=2, sliding_window=None),
    "cohere": CohereConfig(**SIZES, num_hidden_layers=2, logit_scale=0.25),
    "granite": GraniteConfig(**SIZES, num_hidden_layers=2, logits_scaling=4.0, attention_multiplier=0.2),
    "qwen2-sliding": Qwen2Config(
        **SIZES, num_hidden_layers=4, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=2
    ),
}
PROMPTS = 30


@pytest.fixture(scope="module", params=sorted(CONFIGS))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    torch.manual_seed(7)
    causal_lm: Any = AutoModelForCausalLM
    causal_lm.from_config(CONFIGS[request.param], dtype=torch.float32).save_pretrained(folder)
    return folder


def type_at_random(driver: Driver, texts: list[list[int]], rng: random.Random) -> None:
    """All contexts grow in turns, with detours that are taken back and copies that go elsewhere."""
    typed = [0] * len(texts)
    for context in range(len(texts)):
        driver.apply(m.Open(context, "foreground"))
    while unfinished := [i for i, text in enumerate(texts) if typed[i] < len(text)]:
        i = rng.choice(unfinished)
        piece = texts[i][typed[i] : typed[i] + rng.randrange(1, 17)]
        driver.apply(m.Append(i, piece))
        typed[i] += len(piece)
        if rng.random() < 0.2:
            driver.apply(m.Append(i, [rng.randrange(VOCAB) for _ in range(5)]))
            driver.step()
            driver.apply(m.Fork(i, 1000, "background"), m.Truncate(i, typed[i]))
            driver.step()
            driver.apply(m.Close(1000))
        elif rng.random() < 0.5:
            driver.step()


def test_greedy_answers_equal_generate(folder: Path) -> None:
    rng = random.Random(3)
    texts = [[rng.randrange(3, VOCAB) for _ in range(rng.randrange(2, 60))] for _ in range(PROMPTS)]
    driver, reference = make_driver(load(folder), blocks=1200, step_tokens=40), load_reference(folder)
    type_at_random(driver, texts, rng)
    for i in range(PROMPTS):
        driver.apply(m.Generate(i, i, m.GenerateParams(12)))
    driver.run()
    for i, text in enumerate(texts):
        assert driver.tokens_of(i) == reference_greedy(reference, text, 12), f"prompt {i}"
