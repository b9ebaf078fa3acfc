"""What a decode step has to do at least, whatever the code: bytes to read, floating point operations."""

from __future__ import annotations

from dataclasses import dataclass

from engine.model.weights import NativeConfig

BYTES_PER_WEIGHT = {"bf16": 2.0, "fp32": 4.0, "int8": 1 + 2 / 32, "q4": 0.5 + 4 / 32}
"""With the scale (and minimum) that each group of 32 weights has."""


@dataclass(frozen=True)
class StepCost:
    """Of one step of `rows` sequences with one token each."""

    weight_bytes: float
    """All matrices once, the head included; of the embedding a step reads next to nothing."""
    kv_bytes: float
    flop: float
    """A multiplication and an addition are two."""


def step_cost(config: NativeConfig, weights: str, rows: int, context_tokens: int, kv_bytes_per_token: int) -> StepCost:
    """`context_tokens` of all sequences together; `weights` as `Runner.weights`."""
    heads = config.heads * config.head_dim
    attention = config.hidden * (2 * heads + 2 * config.kv_heads * config.head_dim)
    layers = config.layers * (attention + 3 * config.hidden * config.intermediate)
    head = config.vocab * config.hidden
    return StepCost(
        # The native runner keeps the head of a model in four bits in eight.
        layers * BYTES_PER_WEIGHT[weights] + head * BYTES_PER_WEIGHT["int8" if weights == "q4" else weights],
        context_tokens * kv_bytes_per_token,
        2.0 * rows * (layers + head) + 4.0 * context_tokens * config.layers * heads,
    )
