"""The waste of keeping, dropping and moving, by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.interception import waste
from engine.interception.profile import PROFILES, Profile

# 10 ms a step and 0.05 ms a token; 0.05 ms a token moved; S = 384.
EXAMPLE = Profile("example", base_s=0.010, token_s=0.00005, context_token_s=0.0, swap_token_s=0.00005)


def test_equations_1_to_5_by_hand() -> None:
    """A context of 1,000 tokens beside 4,000 others, 84 of which compute a token a step; the tool takes 2 s."""
    # T_fwd(1000) = 0.010 + 0.050 = 0.060 s; W_D = 0.060 * 1000 + 0.060 * 4000 = 60 + 240.
    assert waste.discard(EXAMPLE, 1000, 4000) == pytest.approx(300.0)
    # W_P = 2 s * 1000.
    assert waste.preserve(1000, 2.0) == pytest.approx(2000.0)
    # T_swap(1000) = 0.050 s; W_S = 2 * 0.050 * (1000 + 4000).
    assert waste.swap(EXAMPLE, 1000, 5000) == pytest.approx(500.0)
    # Chunks of 384 - 84 = 300, so 4 of them; T_fwd(300) = 0.025 s; W_CD = 0.060 * 1000 / 2 + 4 * 0.025 * 4000.
    assert waste.chunks(EXAMPLE, 1000, 84) == (300, 4)
    assert waste.chunked_discard(EXAMPLE, 1000, 84, 4000) == pytest.approx(30.0 + 400.0)
    # As published: a step of 384 takes 0.0292 s, 0.015 s more than one of 84 does. For 1000 tokens that is 0.05 s more:
    # W_CD = 4 * 0.0292 * 1000 / 2 + 0.05 * 4000.
    assert waste.marginal_discard(EXAMPLE, 1000, 84, 4000) == pytest.approx(58.4 + 200.0)
    # And half a second in the queue: 0.5 * 1000 in addition.
    assert waste.marginal_discard(EXAMPLE, 1000, 84, 4000, 0.5) == pytest.approx(758.4)
    # Eq. 5: dropping is better after 2 s, keeping up to 258.4 / 1000 s.
    assert waste.least(EXAMPLE, 1000, 2.0, 84, 4000) == pytest.approx(258.4)
    assert waste.least(EXAMPLE, 1000, 0.2, 84, 4000) == pytest.approx(200.0)
    assert waste.break_even_s(EXAMPLE, 1000, 84, 4000) == pytest.approx(0.2584)


@pytest.mark.parametrize(
    ("name", "expected"), [("gptj-6b", (0.63, 2.4, 7.5)), ("vicuna-13b-tp2", (0.39, 1.5, 4.5))], ids=["6B", "13B on 2"]
)
def test_break_even_times_of_the_released_constants(name: str, expected: tuple[float, float, float]) -> None:
    loads = ((16, 12_800), (64, 51_200), (200, 160_000))
    for (queries, others), seconds in zip(loads, expected, strict=True):
        assert waste.break_even_s(PROFILES[name], 1000, queries, others) == pytest.approx(seconds, rel=0.03)


TOKENS = st.integers(1, 20_000)
OTHERS = st.integers(0, 200_000)
QUERIES = st.integers(0, 600)


@given(st.sampled_from(sorted(PROFILES)), TOKENS, QUERIES, OTHERS)
def test_keeping_is_better_before_the_break_even_time_and_dropping_after(
    name: str, tokens: int, queries: int, others: int
) -> None:
    timing = PROFILES[name]
    even = waste.break_even_s(timing, tokens, queries, others)
    drop = waste.marginal_discard(timing, tokens, queries, others)
    assert waste.preserve(tokens, even * 0.99) < drop < waste.preserve(tokens, even * 1.01)


@given(st.sampled_from(sorted(PROFILES)), TOKENS, QUERIES, OTHERS, OTHERS)
def test_the_more_bystanders_the_longer_keeping_is_worth_it(
    name: str, tokens: int, queries: int, some: int, more: int
) -> None:
    timing, (few, many) = PROFILES[name], sorted((some, more))
    assert waste.break_even_s(timing, tokens, queries, few) <= waste.break_even_s(timing, tokens, queries, many) + 1e-9


def test_nothing_costs_nothing() -> None:
    assert waste.chunked_discard(EXAMPLE, 0, 0, 4000) == 0
    assert waste.marginal_discard(EXAMPLE, 0, 0, 4000, 1.0) == 0
    assert waste.break_even_s(EXAMPLE, 0, 0, 4000) == 0
