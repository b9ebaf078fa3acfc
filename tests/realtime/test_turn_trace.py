"""What a turn's time stamps become."""

from __future__ import annotations

from engine.messages import Finished
from realtime.messages import ToolResult
from realtime.turn_trace import Arrival, TurnTrace
from realtime.turn_usage import TurnUsage


def finished(prompt: int, cached: int, output: int) -> Finished:
    return Finished(1, 1, "stop", prompt, cached, output, 1.0, 2.0, 3.0)


def test_usage_counts_the_prompt_once_and_all_output() -> None:
    usage = TurnUsage()
    usage.began(100, 80)
    usage.generated(5)
    usage.add(finished(100, 90, 5))
    usage.began(130, 129)
    usage.generated(7)
    usage.add(finished(130, 129, 7))
    assert (usage.input_tokens, usage.cached_tokens, usage.output_tokens) == (100, 90, 12)
    assert usage.to_wire()["input_token_details"]["cached_tokens"] == 90


def test_a_turn_that_is_stopped_has_counted_what_it_read_and_said() -> None:
    usage = TurnUsage()
    usage.began(100, 90)
    usage.generated(3)
    assert (usage.input_tokens, usage.cached_tokens, usage.output_tokens) == (100, 90, 3)


def test_a_record_measures_from_the_commit() -> None:
    trace = TurnTrace("s", "n", "prefill", Arrival(10.0, 10.1, 10.2), typing_started_at=5.0, prefilled_before_commit=90)
    usage = TurnUsage()
    usage.add(finished(100, 90, 5))
    trace.asked()
    trace.first_token()
    trace.tool(11.0, ToolResult("c", 1, "4", "", 11.2, 11.3))
    trace.first_token()
    trace.done("completed")
    record = trace.record("resp_1", usage)
    assert record.committed_at == 10.0
    assert record.prefilled_after_commit == 10
    assert record.status == "completed"
    assert [name for name, _, _ in record.spans] == ["typing", "tool"]
    assert record.spans[0] == ("typing", 5.0, 10.0)
    resume = trace.trace_event("resp_1", usage)["resumes"][0]
    assert resume["host_token_at"] >= resume["host_received_at"] > resume["worker_finished_at"]


def test_a_turn_without_a_token_has_no_time_to_first_token() -> None:
    trace = TurnTrace("s", "n", "off", Arrival(10.0, 10.1, 10.2))
    trace.done("cancelled")
    assert trace.turn_event("resp_1", TurnUsage())["ttft_ms"] is None
