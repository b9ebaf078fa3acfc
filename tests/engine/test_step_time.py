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
        time.learn(0, tokens, 0, (0.012 + 0.0003 * tokens) * rng.uniform(0.8, 1.2))
    assert time.predict(0, 1) == pytest.approx(0.0123, rel=0.25)
    assert time.predict(0, 256) == pytest.approx(0.0888, rel=0.25)


def test_one_step_that_was_held_up_teaches_little() -> None:
    time = StepTime()
    for _ in range(200):
        time.learn(0, 1, 0, 0.010)
    time.learn(0, 1, 0, 5.0)
    assert time.predict(0, 1) < 0.012


def test_models_are_learned_apart() -> None:
    time = StepTime()
    for _ in range(300):
        time.learn(0, 1, 0, 0.010)
        time.learn(1, 1, 0, 0.100)
    assert time.predict(1, 1) > 5 * time.predict(0, 1)


def test_the_cost_of_reading_long_contexts_is_found() -> None:
    rng = random.Random(2)
    time = StepTime()
    for _ in range(1000):
        tokens, context_tokens = rng.choice([1, 8, 32, 256]), rng.choice([100, 5_000, 60_000])
        seconds = 0.012 + 0.0003 * tokens + 1e-6 * context_tokens
        time.learn(0, tokens, context_tokens, seconds * rng.uniform(0.9, 1.1))
    assert time.predict(0, 8, 60_000) == pytest.approx(0.0744, rel=0.2)
    assert time.predict(0, 8, 100) == pytest.approx(0.0145, rel=0.2)


def test_what_recent_steps_say_nothing_about_is_not_forgotten() -> None:
    time = StepTime()
    for _ in range(200):
        for tokens in (1, 8, 64, 256):
            time.learn(0, tokens, 0, 0.010 + 0.0005 * tokens)
    for _ in range(3000):
        time.learn(0, 8, 0, 0.014)
    assert time.predict(0, 256) == pytest.approx(0.138, rel=0.1)


def test_a_machine_that_became_slower_is_followed() -> None:
    time = StepTime()
    for seconds in (0.010, 0.100):
        for _ in range(200):
            time.learn(0, 4, 0, seconds)
    assert time.predict(0, 4) == pytest.approx(0.1, rel=0.1)


def test_a_model_that_does_not_join_the_step_costs_its_base_too() -> None:
    time = StepTime()
    joining = time.extra(0, 10, joins=True)
    assert time.extra(0, 10, joins=False) == pytest.approx(time.predict(0, 10))
    assert time.predict(0, 20) == pytest.approx(time.predict(0, 10) + joining)
    assert time.tokens_within(0, joining, joins=True) == 10
    assert time.tokens_within(0, time.predict(0, 0), joins=False) == 0


def test_without_experience_background_chunks_are_small() -> None:
    time = StepTime()
    assert 28 <= time.tokens_within(0, 2 * time.predict(0, 1), joins=False) <= 36


STEPS = st.lists(st.tuples(st.integers(1, 512), st.integers(0, 100_000), st.floats(1e-6, 10)), max_size=60)


@given(STEPS)
def test_more_work_never_takes_less_time(steps: list[tuple[int, int, float]]) -> None:
    time = StepTime()
    for tokens, context_tokens, seconds in steps:
        time.learn(0, tokens, context_tokens, seconds)
    assert 0 < time.predict(0, 1) < time.predict(0, 100) <= time.predict(0, 100, 1000)
    within = time.tokens_within(0, 0.05, 100, joins=True)
    assert within == 0 or time.extra(0, within, 100, joins=True) <= 0.05 * (1 + 1e-3)
