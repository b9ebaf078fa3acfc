"""The events of one response, in the canonical order."""

from __future__ import annotations

from realtime.response import Event, Response


def types(events: list[Event]) -> list[str]:
    return [event["type"] for event in events]


def test_a_text_answer_opens_and_closes_everything_in_order() -> None:
    response = Response(None, "inf")
    events = response.created() + response.delta("Hel", "item_u") + response.delta("lo", "item_u")
    events += response.close_message("completed", "item_u") + response.done("completed", None, {})
    assert types(events) == [
        "response.created",
        "response.output_item.added",
        "conversation.item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "conversation.item.done",
        "response.done",
    ]
    assert events[-1]["response"]["output"][0]["content"] == [{"type": "output_text", "text": "Hello"}]
    assert events[-1]["response"]["status"] == "completed"


def test_a_server_tool_comes_before_the_message_and_keeps_the_output_index() -> None:
    response = Response(None, 5)
    events = response.open_call("mcp_call", "calculator")
    events += response.call_arguments("{}") + response.call_arguments_done() + response.call_in_progress()
    events += response.close_call(output="7")
    events += response.delta("It is 7.", None)
    assert types(events)[:6] == [
        "response.output_item.added",
        "response.mcp_call_arguments.delta",
        "response.mcp_call_arguments.done",
        "response.mcp_call.in_progress",
        "response.mcp_call.completed",
        "response.output_item.done",
    ]
    assert {event["output_index"] for event in events[:6]} == {0}
    assert events[6]["output_index"] == 1
    assert events[5]["item"]["output"] == "7"


def test_a_failed_tool_says_why() -> None:
    response = Response(None, 5)
    response.open_call("mcp_call", "calculator")
    events = response.close_call(error="division by zero")
    assert types(events) == ["response.mcp_call.failed", "response.output_item.done"]
    assert events[-1]["item"]["error"] == {"type": "tool_execution_error", "message": "division by zero"}


def test_a_client_function_has_a_call_id_and_no_outcome() -> None:
    response = Response(None, 5)
    events = response.open_call("function_call", "lookup") + response.call_arguments("{}")
    events += response.call_arguments_done() + response.close_call()
    assert types(events) == [
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
    ]
    assert events[1]["call_id"] == events[0]["item"]["call_id"]
    assert events[2]["name"] == "lookup"
    assert events[3]["item"]["status"] == "completed"


def test_an_early_end_closes_what_is_open() -> None:
    response = Response(None, 5)
    response.delta("Half an ans", None)
    events = response.close_open_parts("incomplete", "cancelled", None)
    assert types(events)[0] == "response.output_text.done"
    assert events[-1]["item"]["status"] == "incomplete"
    response.open_call("mcp_call", "wait")
    assert types(response.close_open_parts("incomplete", "cancelled", None)) == [
        "response.mcp_call.failed",
        "response.output_item.done",
    ]
    assert response.close_open_parts("incomplete", "cancelled", None) == []
    assert [item["type"] for item in response.to_wire("cancelled")["output"]] == ["message", "mcp_call"]
