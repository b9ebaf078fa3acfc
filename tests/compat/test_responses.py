"""/v1/responses."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from pydantic import BaseModel

ASKED: dict[str, Any] = {"model": "default", "input": "What is the capital of France?", "max_output_tokens": 16}


class City(BaseModel):
    name: str
    is_capital: bool


def test_a_whole_response(client: openai.OpenAI) -> None:
    response = client.responses.create(**ASKED, instructions="Answer briefly.", metadata={"a": "b"})
    assert response.object == "response"
    assert response.status in ("completed", "incomplete")
    assert response.output_text
    assert response.metadata == {"a": "b"}
    assert response.usage is not None
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens


def test_a_stream_says_what_the_whole_response_says(client: openai.OpenAI) -> None:
    whole = client.responses.create(**ASKED)
    events: list[Any] = list(client.responses.create(**ASKED, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert list(dict.fromkeys(event.type for event in events)) == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        f"response.{whole.status}",
    ]
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == whole.output_text
    assert events[-1].response.output_text == whole.output_text


def test_the_stream_helper_puts_the_response_together(client: openai.OpenAI) -> None:
    with client.responses.stream(**{**ASKED, "max_output_tokens": 96}) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        if text and stream.get_final_response().status == "completed":
            assert stream.get_final_response().output_text == text


def test_a_function_call_and_the_answer_to_its_output(client: openai.OpenAI, parameters: dict[str, Any]) -> None:
    tools: Any = [{"type": "function", "name": "get_weather", "parameters": parameters, "strict": True}]
    asked = {**ASKED, "max_output_tokens": 64}
    first: Any = client.responses.create(**asked, tools=tools, tool_choice={"type": "function", "name": "get_weather"})
    (call,) = (item for item in first.output if item.type == "function_call")
    assert list(json.loads(call.arguments)) == ["city"]
    output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "Sunny, 21 degrees."}
    more = {**ASKED, "input": [output], "previous_response_id": first.id}
    assert client.responses.create(**more, tools=tools, tool_choice="none").output_text


def test_a_streamed_function_call(client: openai.OpenAI, parameters: dict[str, Any]) -> None:
    tools: Any = [{"type": "function", "name": "get_weather", "parameters": parameters, "strict": True}]
    asked = {**ASKED, "max_output_tokens": 64}
    with client.responses.stream(**asked, tools=tools, tool_choice="required") as stream:
        types = {event.type for event in stream}
        call: Any = stream.get_final_response().output[-1]
    assert {"response.function_call_arguments.delta", "response.function_call_arguments.done"} <= types
    assert list(call.parsed_arguments) == ["city"]


def test_a_conversation_that_the_server_keeps(client: openai.OpenAI) -> None:
    first = client.responses.create(**ASKED)
    more: Any = {**ASKED, "input": "And of Italy?"}
    second = client.responses.create(**more, previous_response_id=first.id)
    assert second.previous_response_id == first.id
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.input_tokens > first.usage.total_tokens
    spoken = {"role": "assistant", "content": first.output_text}
    told: Any = [{"role": "user", "content": ASKED["input"]}, spoken, {"role": "user", "content": "And of Italy?"}]
    assert client.responses.create(**{**ASKED, "input": told}).output_text == second.output_text


def test_stored_responses(client: openai.OpenAI) -> None:
    response = client.responses.create(**ASKED)
    assert client.responses.retrieve(response.id).output_text == response.output_text
    items: Any = list(client.responses.input_items.list(response.id))
    assert [item.content[0].text for item in items] == [ASKED["input"]]
    with pytest.raises(openai.BadRequestError):
        client.responses.cancel(response.id)
    client.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError) as refused:
        client.responses.retrieve(response.id)
    assert refused.value.code == "response_not_found"


def test_what_is_not_to_be_stored_is_not(client: openai.OpenAI) -> None:
    response = client.responses.create(**ASKED, store=False)
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(**ASKED, previous_response_id=response.id)
    assert (refused.value.code, refused.value.param) == ("previous_response_not_found", "previous_response_id")


def test_structured_output_becomes_a_model_of_pydantic(client: openai.OpenAI) -> None:
    response = client.responses.parse(**{**ASKED, "max_output_tokens": 96}, text_format=City)
    assert isinstance(response.output_parsed, City)


@pytest.mark.parametrize(
    ("wrong", "code", "param"),
    [
        ({"temperature": 3}, "invalid_value", "temperature"),
        ({"background": True}, "unsupported_parameter", "background"),
        ({"tools": [{"type": "web_search"}]}, "invalid_value", "tools[0].type"),
    ],
)
def test_what_is_wrong_is_a_bad_request(client: openai.OpenAI, wrong: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(**{**ASKED, **wrong})
    assert (refused.value.code, refused.value.param) == (code, param)
