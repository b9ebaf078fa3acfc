"""Traces and arrivals."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from bench.interception.workload import (
    DEFAULT_TRACE,
    Request,
    Scale,
    TraceError,
    Turn,
    load_trace,
    sample,
    sample_count,
)

CALLING = {"prompt_tokens": 30, "completion_tokens": 5, "api_time_s": 2.5, "api_return_tokens": 7, "tool": "search"}
LAST = {"prompt_tokens": 43, "completion_tokens": 9}


def write(file: Path, *segments: dict[str, Any]) -> Path:
    file.write_text(json.dumps({"id": "a", "type": "qa", "segments": segments}) + "\n\n")
    return file


def test_a_turn_appends_what_the_tool_before_it_returned(tmp_path: Path) -> None:
    (request,) = load_trace(write(tmp_path / "trace.jsonl", CALLING, LAST))
    assert request == Request("qa", (Turn(30, 5, "search", 2.5), Turn(7, 9)))
    assert (request.output_tokens, request.length, request.tool_s) == (14, 51, 2.5)


def test_a_call_behind_the_last_segment_is_left_out(tmp_path: Path) -> None:
    (request,) = load_trace(write(tmp_path / "trace.jsonl", CALLING))
    assert request.turns == (Turn(30, 5),)


def test_a_call_that_returns_less_than_nothing_returns_nothing(tmp_path: Path) -> None:
    (request,) = load_trace(write(tmp_path / "trace.jsonl", CALLING | {"api_return_tokens": -4}, LAST))
    assert request.turns[1].append == 0


def test_scales_durations_and_counts_and_keeps_at_least_one_token(tmp_path: Path) -> None:
    (request,) = load_trace(write(tmp_path / "trace.jsonl", CALLING, LAST), Scale(seconds=0.1, tokens=0.01))
    assert request.turns == (Turn(1, 1, "search", 0.25), Turn(1, 1))


@pytest.mark.parametrize(
    ("segments", "problem"),
    [
        ([], "length >= 1"),
        ([{"prompt_tokens": 3}], "completion_tokens"),
        ([LAST | {"completion_tokens": 0}], "completion_tokens"),
        ([LAST | {"prompt_tokens": "many"}], "Expected `int`"),
        ([LAST | {"prompt_tokens": 0}], "no prompt"),
        ([LAST, LAST], "no api_time_s"),
        ([CALLING | {"api_time_s": -1.0}, LAST], "api_time_s"),
    ],
)
def test_a_wrong_line_is_named_with_its_problem(tmp_path: Path, segments: list[dict[str, Any]], problem: str) -> None:
    with pytest.raises(TraceError, match=f"line 1: .*{problem}"):
        load_trace(write(tmp_path / "trace.jsonl", *segments))


def test_a_file_that_is_no_trace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file"):
        load_trace(tmp_path / "none")
    (tmp_path / "empty").touch()
    with pytest.raises(TraceError, match="no request"):
        load_trace(tmp_path / "empty")
    (tmp_path / "text").write_bytes(b"\xff\x00 hello")
    with pytest.raises(TraceError, match="line 1"):
        load_trace(tmp_path / "text")


def test_the_released_trace_has_six_types_of_requests() -> None:
    trace = load_trace(DEFAULT_TRACE)
    kinds = Counter(request.kind for request in trace)
    assert kinds == {"math": 98, "chatbot": 65, "tts": 65, "image": 65, "ve": 54, "qa": 50}
    human = [turn.tool_s for request in trace for turn in request.turns if turn.tool == "human"]
    assert statistics.mean(human) == pytest.approx(28.2, rel=0.05)


def test_arrivals_are_a_poisson_process_over_the_whole_trace() -> None:
    trace = load_trace(DEFAULT_TRACE)
    requests = sample(trace, 4.0, 7, seconds=2_000)
    gaps = [b.arrival_s - a.arrival_s for a, b in zip(requests, requests[1:], strict=False)]
    assert statistics.mean(gaps) == pytest.approx(0.25, rel=0.05)
    assert statistics.stdev(gaps) == pytest.approx(0.25, rel=0.05)
    share = sum(1 for request in requests if request.kind == "math") / len(requests)
    assert share == pytest.approx(98 / 397, abs=0.03)
    assert len({request.turns for request in requests}) > 350
    assert [request.number for request in requests] == list(range(len(requests)))


def test_the_seed_decides_what_comes_when() -> None:
    trace = load_trace(DEFAULT_TRACE)
    assert sample(trace, 2.0, 1, seconds=50) == sample(trace, 2.0, 1, seconds=50)
    assert sample(trace, 2.0, 1, seconds=50) != sample(trace, 2.0, 2, seconds=50)
    assert sample_count(trace, 2.0, 1, count=20) == sample(trace, 2.0, 1, seconds=500)[:20]
