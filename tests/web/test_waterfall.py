from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.web.test_percentiles import turn
from web.waterfall import gaps, waterfall


def spans_of(view: dict[str, Any], name: str) -> list[tuple[int, int]]:
    return [(round(span["start"]), round(span["end"])) for span in view["spans"] if span["name"] == name]


def test_times_count_from_the_commit() -> None:
    view = waterfall(turn(spans=[("typing", 90.0, 99.0), ("prefill", 100.0, 100.05)]))
    assert spans_of(view, "typing") == [(-10000, -1000)]
    assert spans_of(view, "answer") == [(50, 1000)]
    assert round(view["ttft_ms"]) == 50
    assert round(view["complete_ms"]) == 1000


def test_what_nothing_explains_is_shown_as_unaccounted() -> None:
    view = waterfall(turn(spans=[("prefill", 100.01, 100.03)]))
    assert spans_of(view, "unaccounted") == [(0, 10), (30, 50)]


def test_a_tool_wait_is_no_answer_time() -> None:
    view = waterfall(turn(spans=[("prefill", 100.0, 100.05), ("tool", 100.2, 100.6)]))
    assert spans_of(view, "answer") == [(50, 200), (600, 1000)]
    assert spans_of(view, "unaccounted") == []


def test_a_turn_without_a_token_is_all_unaccounted() -> None:
    view = waterfall(turn(first_token_at=0.0, status="failed"))
    assert view["ttft_ms"] is None
    assert view["complete_ms"] is None
    assert spans_of(view, "unaccounted") == [(0, 1000)]


@given(st.lists(st.tuples(st.floats(-50, 150), st.floats(0, 50))))
def test_spans_and_gaps_together_cover_the_whole_time(pairs: list[tuple[float, float]]) -> None:
    spans: list[dict[str, Any]] = [{"name": "x", "start": start, "end": start + length} for start, length in pairs]
    free = gaps(spans, 0.0, 100.0)
    assert gaps(spans + [{"name": "gap", "start": start, "end": end} for start, end in free], 0.0, 100.0) == []
    assert all(0 <= start < end <= 100 for start, end in free)
    assert all(span["end"] <= start or span["start"] >= end for start, end in free for span in spans)
