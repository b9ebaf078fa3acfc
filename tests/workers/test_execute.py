from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import redis

from realtime import keys
from realtime.inbox import FIELD
from realtime.messages import InboxMessage, ToolJob, ToolPartial, ToolProgress, ToolResult, ToolStarted, decode_inbox
from workers.call_record import MAX_OUTPUT_BYTES, TRUNCATION_MARK, CallRecord, Claimed, Holder, truncate
from workers.execute import MAX_RUNS, Execution
from workers.registry import TOOLS, Tool
from workers.tool import ToolContext

ME = Holder("this-worker", os.getpid())
NODE = "node-1"
JOB = ToolJob("call_1", 1, NODE, "calculator", '{"expression": "6*7"}', 0.0)
DEAD_PID = 2**22 + 1  # above the largest pid Linux gives


def inbox(client: redis.Redis) -> list[InboxMessage]:
    entries: Any = client.xrange(keys.node_inbox(NODE))
    return [decode_inbox(fields[FIELD]) for _, fields in entries]


def results(client: redis.Redis) -> list[ToolResult]:
    return [message for message in inbox(client) if isinstance(message, ToolResult)]


def run(client: redis.Redis, me: Holder = ME, **changes: Any) -> None:
    Execution(client, msgspec.structs.replace(JOB, **changes), me).run()


def use_tool(monkeypatch: pytest.MonkeyPatch, run: Any, **changes: Any) -> None:
    """Lets `calculator` do something else."""
    spec = replace(TOOLS["calculator"].spec, **changes)
    monkeypatch.setitem(TOOLS, "calculator", Tool(spec, run))


def test_a_call_is_started_and_answered_in_the_nodes_inbox(client: redis.Redis) -> None:
    run(client)
    started, result = inbox(client)
    assert started == ToolStarted("call_1", 1, "this-worker")
    assert isinstance(result, ToolResult)
    assert (result.output, result.error) == ("42", "")
    assert 0 < result.started_at <= result.finished_at
    record: Any = client.hgetall(keys.tool("call_1"))
    assert (record[b"state"], record[b"output"]) == (b"done", b"42")
    assert 0 < int(client.ttl(keys.tool("call_1"))) <= 3600


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"name": "shell"}, "there is no tool 'shell'; there are calculator, wait"),
        ({"arguments": "{"}, "the arguments are not valid JSON"),
        ({"arguments": "[" * 60_000}, "the arguments are not valid JSON"),
        ({"arguments": " " * 70_000}, "the arguments are longer than 65536 bytes"),
        ({"arguments": "[]"}, "invalid arguments: $: [] is not of type 'object'"),
        ({"arguments": "{}"}, "invalid arguments: $: 'expression' is a required property"),
        ({"arguments": '{"expression": 1}'}, "invalid arguments: $.expression: 1 is not of type 'string'"),
        ({"arguments": '{"expression": "1/0"}'}, "division by zero"),
        ({"name": "wait", "arguments": '{"seconds": 61}'}, "61 is greater than the maximum of 60"),
    ],
)
def test_a_bad_call_is_answered_with_the_reason(client: redis.Redis, changes: dict[str, Any], error: str) -> None:
    run(client, **changes)
    (result,) = results(client)
    assert error in result.error
    assert result.output == ""
    assert client.hget(keys.tool("call_1"), "state") == b"failed"


def test_an_unexpected_exception_is_named_but_not_quoted(client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(arguments: dict[str, Any], context: ToolContext) -> str:
        raise KeyError("secret")

    use_tool(monkeypatch, broken)
    run(client)
    assert results(client)[0].error == "the tool raised KeyError"


def test_a_tool_over_its_time_limit_is_stopped(client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(arguments: dict[str, Any], context: ToolContext) -> str:
        while True:
            pass

    use_tool(monkeypatch, endless, time_limit_s=0.1)
    run(client)
    assert results(client)[0].error == "the tool took longer than 0.1 s"


def test_a_finished_call_is_answered_again_without_running(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(client)
    use_tool(monkeypatch, lambda arguments, context: pytest.fail("ran twice"))
    run(client, attempt=2)
    first, second = results(client)
    assert second == msgspec.structs.replace(first, attempt=2)


def test_a_running_attempt_is_not_run_a_second_time(client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []

    def delivered_again(arguments: dict[str, Any], context: ToolContext) -> str:
        runs.append(1)
        run(client, me=Holder(ME.worker, os.getppid()))
        return "once"

    use_tool(monkeypatch, delivered_again)
    run(client)
    assert runs == [1]
    assert [result.output for result in results(client)] == ["once"]


def test_an_attempt_held_by_a_living_other_worker_is_left_alone(client: redis.Redis) -> None:
    client.set(keys.worker("other"), "{}", ex=3)
    CallRecord(client, JOB).claim(Holder("other", 1), time.time())
    run(client)
    assert inbox(client) == []


@pytest.mark.parametrize("dead", [Holder("gone", 1), Holder(ME.worker, DEAD_PID)])
def test_an_idempotent_tool_is_run_again_when_its_holder_died(client: redis.Redis, dead: Holder) -> None:
    CallRecord(client, JOB).claim(dead, time.time())
    run(client)
    assert results(client)[0].output == "42"


def test_a_tool_with_effects_is_not_run_again(client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    use_tool(monkeypatch, lambda arguments, context: pytest.fail("ran again"), idempotent=False)
    CallRecord(client, JOB).claim(Holder("gone", 1), time.time())
    run(client)
    assert "died" in results(client)[0].error


def test_a_call_that_kills_its_worker_is_given_up(client: redis.Redis) -> None:
    record = CallRecord(client, JOB)
    dead = None
    for number in range(MAX_RUNS):
        assert isinstance(record.claim(Holder(f"gone-{number}", 1), time.time(), instead_of=dead), Claimed)
        dead = Holder(f"gone-{number}", 1)
    run(client)
    assert results(client)[0].error == "this tool call killed its worker 3 times"


def test_of_two_attempts_the_first_result_wins(client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    def slower(arguments: dict[str, Any], context: ToolContext) -> str:
        use_tool(monkeypatch, lambda arguments, context: "second attempt")
        run(client, me=Holder("other", 1), attempt=2)
        return "first attempt"

    use_tool(monkeypatch, slower)
    run(client)
    assert [(result.attempt, result.output) for result in results(client)] == [(2, "second attempt")]


def test_a_call_cancelled_in_the_queue_does_not_run(client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    use_tool(monkeypatch, lambda arguments, context: pytest.fail("ran"))
    client.hset(keys.tool("call_1"), "cancel", "1")
    run(client)
    assert results(client)[0].error == "cancelled"


def test_nothing_is_kept_of_what_a_cancelled_call_gives(client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    def late(arguments: dict[str, Any], context: ToolContext) -> str:
        client.hset(keys.tool("call_1"), "cancel", "1")
        return "a secret"

    use_tool(monkeypatch, late)
    run(client)
    assert (results(client)[0].output, results(client)[0].error) == ("", "cancelled")
    assert "secret" not in str(client.hgetall(keys.tool("call_1")))


def test_progress_is_reported_and_cancel_is_seen(client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    def watchful(arguments: dict[str, Any], context: ToolContext) -> str:
        assert not context.cancelled()
        context.progress(1.0, 2.0, "half")
        client.hset(keys.tool("call_1"), "cancel", "1")
        assert context.cancelled()
        return "4"

    use_tool(monkeypatch, watchful)
    run(client)
    _, progress, result = inbox(client)
    assert progress == ToolProgress("call_1", 1, 1.0, 2.0, "half")
    assert isinstance(result, ToolResult)
    assert result.error == "cancelled"


def test_output_is_posted_while_the_tool_runs(client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    def streaming(arguments: dict[str, Any], context: ToolContext) -> str:
        context.partial("4")
        assert inbox(client)[-1] == ToolPartial("call_1", 1, 0, "4")
        return "42"

    use_tool(monkeypatch, streaming)
    run(client)
    assert results(client)[0].output == "42"


def test_a_long_output_is_cut_and_marked(client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    use_tool(monkeypatch, lambda arguments, context: "é" * MAX_OUTPUT_BYTES)
    run(client)
    output = results(client)[0].output
    assert MAX_OUTPUT_BYTES - 2 <= len(output.encode()) <= MAX_OUTPUT_BYTES
    assert output.endswith("é" + TRUNCATION_MARK)
    assert client.hget(keys.tool("call_1"), "truncated") == b"1"


def test_a_short_output_is_kept_as_it_is() -> None:
    assert truncate("x" * MAX_OUTPUT_BYTES) == "x" * MAX_OUTPUT_BYTES
