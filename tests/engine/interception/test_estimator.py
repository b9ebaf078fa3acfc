"""What is learned of how long calls last, and the time limits that follow from it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.interception.estimator import _ENOUGH, _MOST_KEYS, _WINDOW, Durations, History
from engine.interception.policy import Call

SECONDS = st.lists(st.floats(0.0, 100.0), min_size=1, max_size=30)


def durations(values: list[float]) -> Durations:
    made = Durations()
    for value in values:
        made.add(value)
    return made


def expected_cost(values: list[float], elapsed: float, limit: float, price: float) -> float:
    longer = [value for value in values if value > elapsed]
    return sum(value - elapsed if value <= limit else limit - elapsed + price for value in longer) / len(longer)


def test_the_oldest_of_more_than_a_window_is_forgotten() -> None:
    known = durations([50.0] * 10 + [float(i) for i in range(_WINDOW)])
    assert len(known) == _WINDOW
    assert known.mean == pytest.approx((_WINDOW - 1) / 2)
    assert known.longer_than(96.5) == [97.0, 98.0, 99.0]


def test_the_remaining_time_is_that_of_calls_that_lasted_as_long() -> None:
    known = durations([1.0, 2.0, 6.0, 10.0])
    assert known.remaining(0.0) == pytest.approx(4.75)
    assert known.remaining(2.0) == pytest.approx((4.0 + 8.0) / 2)
    assert known.remaining(10.0) is None


def test_short_calls_are_waited_for_and_long_ones_are_not() -> None:
    known = durations([1.0, 1.0, 1.0, 30.0])
    # Until 1 s, then the price: (3 * 1 + 1 + 2) / 4 = 1.5, less than dropping at once (2) and than waiting (33 / 4).
    assert known.limit(0.0, 2.0) == 1.0
    assert known.limit(1.0, 2.0) == 1.0
    assert known.limit(0.0, 0.1) == 0.0
    assert known.limit(0.0, 100.0) == math.inf


@given(SECONDS, st.floats(0.0, 50.0), st.floats(0.01, 50.0), st.floats(0.0, 100.0))
def test_no_other_limit_costs_less(values: list[float], elapsed: float, price: float, other: float) -> None:
    if max(values) <= elapsed:
        return
    best = expected_cost(values, elapsed, durations(values).limit(elapsed, price), price)
    assert best <= price + 1e-9
    for limit in [math.inf, elapsed, elapsed + other, *(value for value in values if value > elapsed)]:
        assert best <= expected_cost(values, elapsed, limit, price) + 1e-9


@given(SECONDS, st.floats(0.01, 50.0), st.floats(0.0, 1.0))
def test_the_best_limit_stays_the_best_while_the_call_goes_on(values: list[float], price: float, share: float) -> None:
    known = durations(values)
    first = known.limit(0.0, price)
    elapsed = share * min(first, max(values))
    if elapsed >= min(first, max(values)):
        return
    later = known.limit(elapsed, price)
    assert expected_cost(values, elapsed, first, price) == pytest.approx(
        expected_cost(values, elapsed, later, price), abs=1e-9
    )


def test_the_class_then_the_tool_then_all_tools_answer() -> None:
    history = History()
    for _ in range(_ENOUGH - 1):
        history.observe(Call("search", "short"), 1.0)
    assert history.of(Call("search", "short")) is None
    history.observe(Call("other"), 11.0)
    for call in (Call("search", "short"), Call("new")):
        of_all = history.of(call)
        assert of_all is not None
        assert of_all.mean == pytest.approx(3.0)
    history.observe(Call("search", "long"), 6.0)
    of_tool = history.of(Call("search", "short"))
    assert of_tool is not None
    assert of_tool.mean == pytest.approx(2.0)
    history.observe(Call("search", "short"), 1.0)
    of_class = history.of(Call("search", "short"))
    assert of_class is not None
    assert of_class.mean == pytest.approx(1.0)


def test_a_call_without_a_class_is_counted_once() -> None:
    history = History()
    for _ in range(_ENOUGH):
        history.observe(Call("search"), 1.0)
    known = history.of(Call("search"))
    assert known is not None
    assert len(known) == _ENOUGH


def test_invented_names_fill_no_memory_and_still_teach_about_all() -> None:
    history = History()
    for i in range(2 * _MOST_KEYS):
        history.observe(Call(f"tool {i}"), 1.0)
    assert len(history._kinds) == _MOST_KEYS
    known = history.of(Call("another"))
    assert known is not None
    assert known.mean == 1.0
