from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from realtime.messages import TurnRecord
from web.percentiles import by_strategy, percentile, summary


def turn(**changes: Any) -> TurnRecord:
    values = {
        "turn": "t", "session": "s", "node": "n", "strategy": "prefill", "status": "completed",
        "typing_started_at": 90.0, "committed_at": 100.0, "first_token_at": 100.05, "done_at": 101.0,
        "input_tokens": 10, "cached_tokens": 8, "output_tokens": 5, "prefilled_before_commit": 8,
        "prefilled_after_commit": 2, "notes": 0, "spans": [],
    }  # fmt: skip
    return TurnRecord(**{**values, **changes})


def test_percentiles_are_nearest_ranks() -> None:
    values = [float(value) for value in range(1, 101)]
    assert [percentile(values, percent) for percent in (50, 95, 99)] == [50, 95, 99]
    assert percentile([7.0], 99) == 7
    assert percentile([1.0, 2.0], 50) == 1


@given(st.lists(st.floats(0, 1e6), min_size=1), st.sampled_from([50, 95, 99]))
def test_a_percentile_is_a_measured_value_that_enough_values_do_not_exceed(values: list[float], percent: int) -> None:
    result = percentile(sorted(values), percent)
    assert result in values
    assert sum(value <= result for value in values) >= len(values) * percent / 100


def test_nothing_measured_is_none_and_not_a_number() -> None:
    assert summary([]) is None


def test_turns_are_grouped_by_strategy() -> None:
    rows = by_strategy([turn(), turn(strategy="off", first_token_at=100.5), turn(first_token_at=100.07)])
    assert [(row["strategy"], row["turns"]) for row in rows] == [("off", 1), ("prefill", 2)]
    assert round(rows[0]["ttft"]["p50"]) == 500
    assert round(rows[1]["ttft"]["p95"]) == 70


def test_only_completed_turns_count_as_complete_answers() -> None:
    (row,) = by_strategy([turn(status="cancelled"), turn(done_at=102.0)])
    assert row["complete"]["count"] == 1
    assert round(row["complete"]["p50"]) == 2000
    assert row["ttft"]["count"] == 2


def test_a_turn_that_never_got_a_token_counts_nowhere() -> None:
    (row,) = by_strategy([turn(status="failed", first_token_at=0.0)])
    assert row["ttft"] is None
    assert row["complete"] is None
