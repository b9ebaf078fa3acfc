"""Sampling on small hand-made distributions."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.messages import Sampling
from engine.model.sampler import SampleRow, sample, uniform

PROBABILITIES = [0.1, 0.4, 0.05, 0.25, 0.2]


def logits(rows: int = 1) -> torch.Tensor:
    return torch.tensor([[math.log(p) for p in PROBABILITIES]]).repeat(rows, 1)


def draws(count: int = 4000, **sampling: float) -> list[float]:
    """How often each token comes out."""
    options = Sampling(temperature=1.0, seed=3)
    fields = {f: getattr(options, f) for f in options.__struct_fields__} | sampling
    rows = [SampleRow(Sampling(**fields), position) for position in range(count)]
    tokens = sample(logits(count), rows)
    return [tokens.count(token) / count for token in range(len(PROBABILITIES))]


def test_temperature_zero_is_greedy() -> None:
    assert sample(logits(2), [SampleRow(Sampling(), 0), SampleRow(Sampling(seed=9), 5)]) == [1, 1]


def test_samples_follow_the_distribution() -> None:
    assert draws() == pytest.approx(PROBABILITIES, abs=0.03)


def test_low_temperature_sharpens() -> None:
    assert draws(temperature=0.05)[1] > 0.99


def test_top_k_keeps_the_k_best() -> None:
    assert draws(top_k=2) == pytest.approx([0, 0.4 / 0.65, 0, 0.25 / 0.65, 0], abs=0.03)


def test_top_p_keeps_the_smallest_set_that_reaches_p() -> None:
    assert draws(top_p=0.5) == pytest.approx([0, 0.4 / 0.65, 0, 0.25 / 0.65, 0], abs=0.03)


def test_tiny_top_p_keeps_the_best() -> None:
    assert draws(top_p=1e-6) == [0, 1, 0, 0, 0]


def test_min_p_is_relative_to_the_best() -> None:
    assert draws(min_p=0.45) == pytest.approx([0, 0.4 / 0.85, 0, 0.25 / 0.85, 0.2 / 0.85], abs=0.03)


def test_rows_do_not_influence_each_other() -> None:
    rows = [SampleRow(Sampling(temperature=0.5 + i / 10, top_k=i % 4, seed=i), i) for i in range(20)]
    together = sample(logits(20), rows)
    assert together == [sample(logits(), [row])[0] for row in rows]


@given(st.integers(), st.integers(0, 1 << 20))
def test_uniform_is_in_range_and_repeatable(seed: int, position: int) -> None:
    value = uniform(seed, position)
    assert 0 <= value < 1
    assert value == uniform(seed, position)


def test_neighbouring_seeds_and_positions_are_unrelated() -> None:
    values = [uniform(seed, position) for seed in range(50) for position in range(50)]
    assert len(set(values)) == len(values)
    assert sum(values) / len(values) == pytest.approx(0.5, abs=0.02)
