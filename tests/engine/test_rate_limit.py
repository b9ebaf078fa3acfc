"""Token buckets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.rate_limit import RateLimits, TokenBucket


def test_a_bucket_refills_at_its_rate_and_holds_one_burst() -> None:
    bucket = TokenBucket(10.0, 20.0, now=0.0)
    bucket.charge(20, 0.0)
    assert [bucket.available(t) for t in (0.0, 0.5, 1.0, 100.0)] == [0, 5, 10, 20]


def test_wait_is_how_long_it_takes_to_one_token() -> None:
    bucket = TokenBucket(10.0, 10.0, now=0.0)
    bucket.charge(14, 0.0)
    assert bucket.wait(0.0) == pytest.approx(0.5)
    assert bucket.available(0.5) == 1


def test_less_than_a_token_a_second_is_a_rate_too() -> None:
    limits = RateLimits(0.25, 0.0, 0.0)
    assert limits.available(1, 0.0) == 1
    limits.charge(1, 1, 0.0)
    assert limits.wait(1, 0.0) == pytest.approx(4.0)
    assert limits.available(1, 4.0) == 1


def test_payer_0_has_no_limit_of_its_own() -> None:
    limits = RateLimits(0.0, 10.0, 0.0)
    assert limits.available(0, 0.0) is None


@given(st.floats(0.1, 5000), st.integers(1, 3000), st.floats(0, 2e9))
def test_after_the_wait_there_is_a_token(rate: float, used: int, now: float) -> None:
    bucket = TokenBucket(rate, rate, now)
    bucket.charge(used, now)
    assert bucket.available(now + bucket.wait(now)) >= 1


def test_without_limits_everything_is_available() -> None:
    limits = RateLimits(0.0, 0.0, 0.0)
    limits.charge(1, 1_000_000, 0.0)
    assert limits.available(1, 0.0) is None
    assert limits.wait(1, 0.0) == 0.0


def test_payers_are_limited_apart_and_together() -> None:
    limits = RateLimits(100.0, 60.0, 0.0)
    limits.charge(1, 60, 0.0)
    assert limits.available(1, 0.0) == 0
    assert limits.available(2, 0.0) == 40
    assert limits.wait(1, 0.0) == pytest.approx(1 / 60)
    assert limits.wait(3, 0.0) == 0.0


def test_payers_who_have_recovered_are_forgotten() -> None:
    limits = RateLimits(0.0, 10.0, 0.0)
    for payer in range(1, 1000):
        limits.charge(payer, 5, 0.0)
    limits.forget_full(10.0)
    assert limits.payers == 0


@given(st.lists(st.tuples(st.floats(0, 2), st.integers(1, 50)), max_size=50))
def test_no_more_than_rate_and_burst_is_ever_used(uses: list[tuple[float, int]]) -> None:
    bucket, now, used = TokenBucket(30.0, 30.0, 0.0), 0.0, 0
    for pause, wanted in uses:
        now += pause
        tokens = min(wanted, bucket.available(now))
        bucket.charge(tokens, now)
        used += tokens
        assert used <= 30 + 30 * now + 0.01
