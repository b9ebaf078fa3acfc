"""Intervals and tests against figures from tables and simple cases."""

from __future__ import annotations

import pytest

from bench.eval.statistics import bootstrap_difference, bootstrap_median_ratio, mcnemar, percentile, wilson


def test_percentiles_are_linear_between_values() -> None:
    assert percentile([1, 2, 3, 4], 50) == 2.5
    assert percentile([0, 10], 90) == 9
    assert percentile([], 50) is None


def test_wilson_intervals() -> None:
    assert wilson(5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)
    assert wilson(0, 20) == pytest.approx((0, 0.1611), abs=1e-4)
    assert wilson(20, 20)[1] == 1
    assert wilson(0, 0) == (0, 1)


@pytest.mark.parametrize(
    ("only_first", "only_second", "probability"),
    [(0, 0, 1.0), (3, 3, 1.0), (0, 5, 0.0625), (1, 9, 22 / 1024), (9, 1, 22 / 1024), (0, 1, 1.0)],
)
def test_mcnemar_is_a_fair_coin(only_first: int, only_second: int, probability: float) -> None:
    assert mcnemar(only_first, only_second) == pytest.approx(probability)


def test_a_constant_difference_has_no_spread() -> None:
    assert bootstrap_difference([1, 2, 3], [2, 3, 4]) == pytest.approx((1, 1))
    assert bootstrap_median_ratio([2, 4, 8], [1, 2, 4]) == pytest.approx((2, 2))


def test_a_mixed_difference_lies_around_its_mean() -> None:
    low, high = bootstrap_difference([0] * 50, [1, 0] * 25)
    assert 0.3 < low < 0.5 < high < 0.7
    assert bootstrap_difference([0] * 50, [1, 0] * 25) == (low, high)
