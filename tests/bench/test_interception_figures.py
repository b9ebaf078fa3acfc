"""Figures of a run."""

from __future__ import annotations

import pytest

from bench.interception.figures import Memory, Outcome, run_of
from bench.interception.workload import Request, Turn

FAST = Request("math", (Turn(5, 10),), 0, 1.0)
SLOW = Request("image", (Turn(5, 4, "image_gen", 8.0), Turn(1, 6)), 1, 2.0)


def test_normalized_latency_is_seconds_for_each_token_without_the_tools() -> None:
    run = run_of("ours", 2.0, [Outcome(SLOW, 0.5, 10.0)], 20.0, Memory())
    assert (run["policy"], run["rate"], run["completed_per_s"]) == ("ours", 2.0, 1 / 20)
    assert run["normalized_latency_p50_s"] == pytest.approx(0.2)
    assert run["normalized_latency_with_tools_p50_s"] == pytest.approx(1.0)
    assert run["ttft_p99_s"] == 0.5


def test_a_request_that_was_not_completed_ends_with_the_window() -> None:
    run = run_of("ours", 2.0, [Outcome(FAST, None, None)], 11.0, Memory())
    assert (run["completed"], run["completed_per_s"]) == (0, 0.0)
    assert run["normalized_latency_p90_s"] == pytest.approx(1.0)
    assert run["ttft_p50_s"] is None


def test_each_type_has_its_own_figures() -> None:
    run = run_of("ours", 2.0, [Outcome(FAST, 0.1, 1.0), Outcome(SLOW, 0.5, 10.0)], 20.0, Memory())
    assert run["types"]["math"]["normalized_latency_p50_s"] == pytest.approx(0.1)
    assert run["types"]["image"]["ttft_p50_s"] == 0.5
    assert run["normalized_latency_p50_s"] == pytest.approx(0.15)


def test_waste_is_a_share_of_memory_and_time() -> None:
    memory = Memory(1000.0, {"held idle": 15.0, "recompute": 5.0}, recomputed_tokens=42)
    run = run_of("ours", 2.0, [Outcome(FAST, 0.1, 1.0)], 20.0, memory)
    assert run["waste_share"] == pytest.approx(0.02)
    assert run["waste_shares"] == {"held idle": 0.015, "recompute": 0.005}
    assert run["recomputed_tokens"] == 42
    assert run_of("ours", 2.0, [], 0.0, Memory())["waste_share"] == 0.0
