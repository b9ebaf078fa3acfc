"""The estimate of a step's time, from noisy steps."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.step_time import StepTime


def test_base_and_slope_are_found_in_noise() -> None:
    rng = random.Random(1)
    time = StepTime()
    for _ in range(1000):
        tokens = rng.choice([1, 2, 8, 32, 256])
        time.learn(0, tokens, (0.012 + 0.0003 * tokens) * rng.uniform(0.8, 1.2))
    assert time.predict(0, 1) == pytest.approx(0.0123, rel=0.25)
    assert time.predict(0, 256) == pytest.approx(0.0888, rel=0.25)


def test_one_step_that_was_held_up_teaches_little() -> None:
    time = StepTime()
    for _ in range(200):
        time.learn(0, 1, 0.010)
    time.learn(0, 1, 5.0)
    assert time.predict(0, 1) < 0.012


def test_models_are_learned_apart() -> None:
    time = StepTime()
    for _ in range(300):
        time.learn(0, 1, 0.010)
        time.learn(1, 1, 0.100)
    assert time.predict(1, 1) > 5 * time.predict(0, 1)


@given(st.lists(st.tuples(st.integers(1, 512), st.floats(1e-6, 10)), max_size=60))
def test_more_tokens_never_take_less_time(steps: list[tuple[int, float]]) -> None:
    time = StepTime()
    for tokens, seconds in steps:
        time.learn(0, tokens, seconds)
    assert 0 < time.predict(0, 1) < time.predict(0, 100)
    assert time.tokens_within(0, time.predict(0, 1)) >= 0
