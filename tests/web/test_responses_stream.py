"""Parts in, events out: their order, their numbers, and the object that they add up to."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from realtime.messages import CompletionPart, CompletionUsage, FunctionCallPart, TokenLogprob
from web.responses_request import parse_responses_request
from web.responses_stream import Event, ResponseEvents

USAGE = CompletionUsage(9, 4, 3, reasoning_tokens=1)
CALL = FunctionCallPart("weather", '{"city": "Oslo"}')
SDK_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def run(*parts: CompletionPart) -> tuple[list[Event], dict[str, Any]]:
    asked = parse_responses_request(b'{"model": "tiny", "input": "Hi"}')
    machine = ResponseEvents(asked.to_response("resp_1", 5, "tiny"))
    events = copy.deepcopy(machine.begin())
    for part in parts:
        events += copy.deepcopy(machine.feed(part))
    events += copy.deepcopy(machine.end(USAGE))
    return [*events, machine.last()], machine.response


def types(events: list[Event]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def test_a_text_is_one_message() -> None:
    events, response = run(CompletionPart(text="Hel"), CompletionPart(text="lo"), CompletionPart(finish_reason="stop"))
    assert types(events) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert events[0]["response"]["output"] == []
    assert events[2]["item"]["content"] == []
    assert events[3]["part"] == {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    assert (events[4]["delta"], events[6]["text"]) == ("Hel", "Hello")
    (item,) = response["output"]
    assert events[8]["item"] == item
    assert (item["status"], item["content"][0]["text"], response["status"]) == ("completed", "Hello", "completed")
    assert response["usage"] == {
        "input_tokens": 9,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 1},
        "total_tokens": 12,
    }


def test_reasoning_text_and_calls_are_items_of_their_own() -> None:
    events, response = run(
        CompletionPart(reasoning="Hm."),
        CompletionPart(text="I look."),
        CompletionPart(calls=[CALL, CALL]),
        CompletionPart(finish_reason="tool_calls"),
    )
    assert [item["type"] for item in response["output"]] == ["reasoning", "message", "function_call", "function_call"]
    assert types(events)[-9:-5] == [
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
    ]
    added, delta, done, item_done = events[-5:-1]
    call = response["output"][3]
    assert (added["item"]["arguments"], added["item"]["status"]) == ("", "in_progress")
    assert delta["delta"] == done["arguments"] == call["arguments"] == CALL.arguments
    assert item_done["item"] == call
    assert call["id"] != call["call_id"] != response["output"][2]["call_id"]
    assert response["output"][0]["content"] == [{"type": "reasoning_text", "text": "Hm."}]


def test_a_cut_answer_is_incomplete() -> None:
    events, response = run(CompletionPart(text="Hel"), CompletionPart(finish_reason="length"))
    assert types(events)[-1] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["output"][0]["status"] == "incomplete"


def test_an_answer_of_nothing_is_an_empty_message() -> None:
    _, response = run(CompletionPart(finish_reason="stop"))
    assert response["output"][0]["content"][0]["text"] == ""


def test_a_failure_closes_what_is_open() -> None:
    asked = parse_responses_request(b'{"model": "tiny", "input": "Hi"}')
    machine = ResponseEvents(asked.to_response("resp_1", 5, "tiny"))
    machine.feed(CompletionPart(text="Hel"))
    events = machine.fail("engine_unavailable", "lost")
    assert types(events) == ["output_text.done", "content_part.done", "output_item.done", "failed"]
    assert events[-1]["response"]["error"] == {"code": "engine_unavailable", "message": "lost"}


part = st.one_of(
    st.builds(CompletionPart, reasoning=st.just("r")),
    st.builds(CompletionPart, text=st.just("t"), logprobs=st.just([TokenLogprob("t", -1.0, [116], [])])),
    st.builds(CompletionPart, calls=st.just([CALL])),
)


@given(parts=st.lists(part, max_size=8), reason=st.sampled_from(["stop", "length", "tool_calls"]))
def test_whatever_comes_the_events_are_well_formed(parts: list[CompletionPart], reason: Any) -> None:
    events, response = run(*parts, CompletionPart(finish_reason=reason))
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    for event in events:
        # The SDK itself does not validate what it parses; its types tell what a client may rely on.
        SDK_EVENT.validate_python(event)
    Response.model_validate(response)
    open_items: list[int] = []
    for event in events:
        if event["type"] == "response.output_item.added":
            open_items.append(event["output_index"])
        elif event["type"] == "response.output_item.done":
            assert open_items == [event["output_index"]]
            open_items.clear()
        elif "output_index" in event:
            assert open_items == [event["output_index"]]
            assert event["item_id"] == response["output"][event["output_index"]]["id"]
    assert open_items == []
    texts = "".join(part.text for part in parts)
    said = [item["content"][0] for item in response["output"] if item["type"] == "message"]
    assert "".join(content["text"] for content in said) == texts
    assert sum(len(content["logprobs"]) for content in said) == len(texts)


def test_the_response_says_what_was_asked_for() -> None:
    body = b'{"model": "m", "input": "Hi", "temperature": 0.5, "metadata": {"a": "b"}, "store": false, "tools": []}'
    response = parse_responses_request(body).to_response("resp_1", 5, "tiny")
    assert (response["temperature"], response["metadata"], response["store"]) == (0.5, {"a": "b"}, False)
