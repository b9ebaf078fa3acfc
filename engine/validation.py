"""What the engine refuses to generate with."""

from __future__ import annotations

import math

from engine.messages import GenerateParams, Sampling

_MAX_TOP_LOGPROBS = 20
_MAX_BIASES = 1024


class Refused(Exception):
    """A command that cannot be obeyed; becomes a `Failed` item."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def check_params(params: GenerateParams, vocab_size: int) -> None:
    """Raises `Refused`."""
    _require(params.max_tokens >= 1, "max_tokens must be at least 1")
    _require(
        0 <= (params.top_logprobs or 0) <= _MAX_TOP_LOGPROBS, f"top_logprobs must be from 0 to {_MAX_TOP_LOGPROBS}"
    )
    _check_tokens(params.draft, vocab_size, "draft")
    _check_sampling(params.sampling, vocab_size)


def check_tokens(tokens: list[int], vocab_size: int) -> None:
    """Raises `Refused` when one of `tokens` is none of the model's."""
    _check_tokens(tokens, vocab_size, "token ids")


def _check_sampling(sampling: Sampling, vocab_size: int) -> None:
    penalties = (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty)
    numbers = (sampling.temperature, sampling.top_p, sampling.min_p, *penalties, *sampling.logit_bias.values())
    _require(all(math.isfinite(number) for number in numbers), "sampling parameters must be finite numbers")
    _require(sampling.temperature >= 0, "temperature must be a number from 0")
    _require(0 < sampling.top_p <= 1, "top_p must be above 0 and at most 1")
    _require(sampling.top_k >= 0, "top_k must be from 0")
    _require(0 <= sampling.min_p <= 1, "min_p must be from 0 to 1")
    _require(sampling.repetition_penalty > 0, "repetition_penalty must be above 0")
    _require(len(sampling.logit_bias) <= _MAX_BIASES, f"logit_bias has more than {_MAX_BIASES} tokens")
    _check_tokens(list(sampling.logit_bias), vocab_size, "logit_bias")


def _check_tokens(tokens: list[int], vocab_size: int, name: str) -> None:
    inside = not tokens or (min(tokens) >= 0 and max(tokens) < vocab_size)
    _require(inside, f"{name} must be from 0 to {vocab_size - 1}")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise Refused("invalid_value", message)
