"""A response whose host died: rebuilt from the log, so that it ends like any other."""

from __future__ import annotations

from typing import Any

from realtime.ids import server_event
from realtime.response import Response


def _begin() -> tuple[Response, list[dict[str, Any]]]:
    response = Response({"key": "value"}, 64)
    return response, response.created()


def _end(response: Response) -> list[dict[str, Any]]:
    closing = response.close_open_parts("incomplete", "the response failed", "item_before")
    return closing + response.done("failed", None, None)


def _comparable(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in event.items() if name != "event_id"} for event in events]


def test_a_response_lost_in_its_text_ends_with_everything_it_said() -> None:
    response, log = _begin()
    log += response.delta("Once ", "item_before") + [server_event("session.updated", session={})]
    log += response.delta("upon", "item_before")
    other, noise = _begin()
    noise += other.delta("not this", None)

    rebuilt = Response.from_log(response.id, noise + log)

    assert rebuilt.text == "Once upon"
    assert _comparable(_end(rebuilt)) == _comparable(_end(response))


def test_a_response_lost_in_a_tool_call_keeps_what_was_finished_and_fails_the_call() -> None:
    response, log = _begin()
    log += response.delta("Let me see.", None) + response.close_message("completed", None)
    log += response.open_call("mcp_call", "wait") + response.call_arguments('{"seconds":5}')
    log += response.call_arguments_done() + response.call_in_progress()

    ending = _end(Response.from_log(response.id, log))

    assert _comparable(ending) == _comparable(_end(response))
    assert [event["type"] for event in ending] == [
        "response.mcp_call.failed",
        "response.output_item.done",
        "response.done",
    ]


def test_a_log_that_has_lost_the_beginning_still_gives_an_end() -> None:
    response, log = _begin()
    log += response.open_call("mcp_call", "wait") + response.call_arguments("{}")

    ending = _end(Response.from_log(response.id, log[2:]))

    assert [event["type"] for event in ending] == ["response.done"]
    assert ending[0]["response"]["id"] == response.id
