"""Choosing the next tokens, for all rows of a step at once, on the device.

The one random number of a row is a function of (seed, position), so a run can be repeated in any batch and a draft
can be compared with an answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import xgrammar

from engine.messages import Sampling
from engine.model.grammar import Matcher

_MASK64 = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class SampleRow:
    """How one row of logits becomes the token at `position` of its context."""

    sampling: Sampling
    position: int
    matcher: Matcher | None = None


def sample(logits: torch.Tensor, rows: Sequence[SampleRow]) -> list[int]:
    """One token id per row. `logits` is float32 `[rows, vocab]` and is changed. Waits for the device once."""
    _apply_grammars(logits, rows)
    chosen = logits.argmax(dim=-1)
    random_rows = [i for i, row in enumerate(rows) if row.sampling.temperature > 0]
    if random_rows:
        index = torch.tensor(random_rows, device=logits.device)
        chosen[index] = _sample_random(logits[index], [rows[i] for i in random_rows])
    return [int(token) for token in chosen.tolist()]


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) from (seed, position): two rounds of the SplitMix64 finaliser (Steele et al., 2014)."""
    return _mix(_mix(seed & _MASK64) ^ (position & _MASK64)) / 2**64 * (1 - 2**-24)


def _mix(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & _MASK64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK64
    return value ^ (value >> 31)


def _apply_grammars(logits: torch.Tensor, rows: Sequence[SampleRow]) -> None:
    constrained = [i for i, row in enumerate(rows) if row.matcher is not None]
    if not constrained:
        return
    bitmask = xgrammar.allocate_token_bitmask(len(rows), logits.shape[-1])
    for i in constrained:
        matcher = rows[i].matcher
        assert matcher is not None
        matcher.fill(bitmask, i)
    xgrammar.apply_token_bitmask_inplace(logits, bitmask.to(logits.device), indices=constrained)


def _sample_random(logits: torch.Tensor, rows: Sequence[SampleRow]) -> torch.Tensor:
    """Temperature, then top-k, top-p and min-p on the sorted distribution, then its inverse at one random number."""
    device = logits.device

    def column(values: list[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float32, device=device).unsqueeze(1)

    temperature = column([max(row.sampling.temperature, 1e-5) for row in rows])
    top_k = column([float(row.sampling.top_k or logits.shape[-1]) for row in rows])
    top_p = column([row.sampling.top_p for row in rows])
    min_p = column([row.sampling.min_p for row in rows])
    draw = column([uniform(row.sampling.seed, row.position) for row in rows])

    probabilities, order = (logits / temperature).softmax(dim=-1).sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(logits.shape[-1], device=device)
    probabilities = probabilities.masked_fill(rank >= top_k, 0.0)
    total = probabilities.sum(dim=-1, keepdim=True)
    # A token stays when the mass before it is below top_p: the smallest set that reaches it.
    before = probabilities.cumsum(dim=-1) - probabilities
    probabilities = probabilities.masked_fill((before >= top_p * total) & (rank > 0), 0.0)
    probabilities = probabilities.masked_fill(probabilities < min_p * probabilities[:, :1], 0.0)
    cumulative = probabilities.cumsum(dim=-1)
    picked = (cumulative <= draw * cumulative[:, -1:]).sum(dim=-1, keepdim=True)
    last = (probabilities > 0).sum(dim=-1, keepdim=True) - 1
    return order.gather(1, torch.minimum(picked, last)).squeeze(1)
