"""/v1/realtime, with text."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.resources.realtime.realtime import RealtimeConnection


@pytest.fixture
def connection(client: openai.OpenAI) -> Iterator[RealtimeConnection]:
    with client.realtime.connect(model="default") as connection:
        created = connection.recv()
        assert created.type == "session.created"
        yield connection


def until(connection: RealtimeConnection, event_type: str) -> list[Any]:
    """All events up to the next of this type; an error ends the test."""
    events: list[Any] = []
    while not events or events[-1].type != event_type:
        events.append(connection.recv())
        assert event_type == "error" or events[-1].type != "error", events[-1]
    return events


def say(connection: RealtimeConnection, text: str) -> None:
    content: Any = [{"type": "input_text", "text": text}]
    connection.conversation.item.create(item={"type": "message", "role": "user", "content": content})


def test_a_turn(connection: RealtimeConnection) -> None:
    connection.session.update(session={"type": "realtime", "output_modalities": ["text"], "instructions": "Be brief."})
    updated = until(connection, "session.updated")[-1]
    assert (updated.session.instructions, updated.session.output_modalities) == ("Be brief.", ["text"])
    say(connection, "What is the capital of France?")
    connection.response.create(response={"max_output_tokens": 12, "metadata": {"a": "b"}})
    events = until(connection, "response.done")
    assert list(dict.fromkeys(event.type for event in events)) == [
        "conversation.item.added",
        "conversation.item.done",
        "response.created",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.done",
    ]
    response = events[-1].response
    assert response.metadata == {"a": "b"}
    assert response.output[0].content[0].text == "".join(
        event.delta for event in events if event.type == "response.output_text.delta"
    )
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens


def test_typed_text(connection: RealtimeConnection) -> None:
    events: list[Any] = [
        {"type": "input_text_buffer.append", "text": "What is the capital of Frame?"},
        {"type": "input_text_buffer.replace", "text": "nce", "start": 26, "end": 28},
        {"type": "input_text_buffer.commit"},
    ]
    for event in events:
        connection.send(event)
    assert until(connection, "conversation.item.done")[-1].item.content[0].text == "What is the capital of France?"


def test_a_function_that_the_client_runs(connection: RealtimeConnection, parameters: dict[str, Any]) -> None:
    tool: Any = {"type": "function", "name": "get_weather", "description": "Of a city.", "parameters": parameters}
    connection.session.update(session={"type": "realtime", "tools": [tool]})
    say(connection, "How is the weather in Paris?")
    connection.response.create(response={"tool_choice": {"type": "function", "name": "get_weather"}})
    events = until(connection, "response.done")
    (done,) = (event for event in events if event.type == "response.function_call_arguments.done")
    call = events[-1].response.output[0]
    assert (call.type, call.name, call.arguments) == ("function_call", "get_weather", done.arguments)
    assert list(json.loads(call.arguments)) == ["city"]
    connection.conversation.item.create(
        item={"type": "function_call_output", "call_id": call.call_id, "output": "Sunny, 21 degrees."}
    )
    connection.response.create(response={"max_output_tokens": 8, "tool_choice": "none"})
    assert until(connection, "response.done")[-1].response.output[0].type == "message"


def test_a_tool_of_the_server(connection: RealtimeConnection) -> None:
    tool: Any = {"type": "mcp", "server_label": "midstream", "require_approval": "never"}
    choice: Any = {"type": "mcp", "server_label": "midstream", "name": "calculator"}
    say(connection, "What is 6 times 7?")
    connection.response.create(response={"tools": [tool], "tool_choice": choice, "max_output_tokens": 64})
    events = until(connection, "response.done")
    types = [event.type for event in events]
    assert types.index("response.mcp_call_arguments.done") < types.index("response.mcp_call.in_progress")
    assert {"response.mcp_call.completed", "response.mcp_call.failed"} & set(types)
    assert events[-1].response.output[0].type == "mcp_call"


def test_items_are_retrieved_and_deleted(connection: RealtimeConnection) -> None:
    say(connection, "Hi")
    item = until(connection, "conversation.item.done")[-1].item
    connection.conversation.item.retrieve(item_id=item.id)
    assert until(connection, "conversation.item.retrieved")[-1].item.content[0].text == "Hi"
    connection.conversation.item.delete(item_id=item.id)
    assert until(connection, "conversation.item.deleted")[-1].item_id == item.id


def test_a_cancelled_response(connection: RealtimeConnection) -> None:
    say(connection, "Count to a thousand.")
    connection.response.create()
    until(connection, "response.created")
    connection.response.cancel()
    assert until(connection, "response.done")[-1].response.status in ("cancelled", "completed", "incomplete")


def test_errors_name_the_event_and_the_session_goes_on(connection: RealtimeConnection) -> None:
    connection.conversation.item.retrieve(item_id="nothing", event_id="mine")
    error = until(connection, "error")[-1].error
    assert (error.code, error.event_id) == ("item_not_found", "mine")
    connection.input_audio_buffer.commit(event_id="theirs")
    error = until(connection, "error")[-1].error
    assert (error.code, error.event_id) == ("unsupported_modality", "theirs")
    connection.session.update(session={"type": "realtime", "instructions": "Still here."})
    until(connection, "session.updated")


def test_the_asynchronous_client(client: openai.OpenAI) -> None:
    async def turn() -> Any:
        addresses: Any = {"base_url": client.base_url, "websocket_base_url": client.websocket_base_url}
        async with (
            openai.AsyncOpenAI(**addresses, api_key="any") as other,
            other.realtime.connect(model="default") as connection,
        ):
            content: Any = [{"type": "input_text", "text": "Hi"}]
            await connection.conversation.item.create(item={"type": "message", "role": "user", "content": content})
            await connection.response.create(response={"max_output_tokens": 4})
            async for event in connection:
                if event.type == "response.done":
                    return event.response.status

    assert asyncio.run(turn()) in ("completed", "incomplete")


def test_the_beta_api_is_refused_with_a_reason(client: openai.OpenAI) -> None:
    beta: Any = getattr(client.beta, "realtime", None)
    if beta is None:
        pytest.skip("this SDK has no beta API any more")
    with beta.connect(model="default") as connection:
        assert connection.recv().error.code == "beta_api_unsupported"
