"""/v1/chat/completions."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from pydantic import BaseModel

ASKED: dict[str, Any] = {
    "model": "default",
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "max_tokens": 12,
}


class City(BaseModel):
    name: str
    is_capital: bool


def test_a_whole_answer(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(**ASKED)
    assert (answer.object, len(answer.choices)) == ("chat.completion", 1)
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_stream_says_what_the_whole_answer_says(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(**ASKED)
    chunks = list(client.chat.completions.create(**ASKED, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == whole.choices[0].message.content
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({(chunk.id, chunk.created) for chunk in chunks}) == 1
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_the_stream_helper_puts_the_answer_together(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(**ASKED) as stream:
        text = "".join(event.delta for event in stream if event.type == "content.delta")
        completion = stream.get_final_completion()
    assert completion.choices[0].message.content == text != ""


def test_a_connection_that_is_closed_early_harms_nobody(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(**{**ASKED, "max_tokens": 96}, stream=True)
    next(iter(stream))
    stream.close()
    assert client.chat.completions.create(**ASKED).choices[0].message.content


def test_a_demanded_tool_call_and_the_answer_to_its_result(client: openai.OpenAI, parameters: dict[str, Any]) -> None:
    function = {"name": "get_weather", "description": "The weather of a city.", "parameters": parameters}
    tools: Any = [{"type": "function", "function": function}]
    named: Any = {"type": "function", "function": {"name": "get_weather"}}
    asked = {**ASKED, "max_tokens": 64}
    called: Any = client.chat.completions.create(**asked, tools=tools, tool_choice=named)
    message = called.choices[0].message
    assert called.choices[0].finish_reason in ("stop", "tool_calls")
    assert message.tool_calls[0].function.name == "get_weather"
    assert list(json.loads(message.tool_calls[0].function.arguments)) == ["city"]
    result: Any = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "Sunny, 21 degrees."}
    more = {**ASKED, "messages": [*ASKED["messages"], message, result]}
    answer = client.chat.completions.create(**more, tools=tools, tool_choice="none")
    assert answer.choices[0].message.content
    assert answer.choices[0].message.tool_calls is None


def test_a_streamed_tool_call(client: openai.OpenAI, parameters: dict[str, Any]) -> None:
    tools: Any = [{"type": "function", "function": {"name": "get_weather", "parameters": parameters}}]
    asked = {**ASKED, "max_tokens": 64}
    with client.chat.completions.stream(**asked, tools=tools, tool_choice="required") as stream:
        types = {event.type for event in stream}
        message: Any = stream.get_final_completion().choices[0].message
    assert "tool_calls.function.arguments.done" in types
    assert message.tool_calls[0].id
    assert list(json.loads(message.tool_calls[0].function.arguments)) == ["city"]


def test_structured_output_becomes_a_model_of_pydantic(client: openai.OpenAI) -> None:
    asked = {**ASKED, "max_tokens": 96}
    answer = client.chat.completions.parse(**asked, response_format=City)
    choice = answer.choices[0]
    assert choice.finish_reason == "stop"
    assert isinstance(choice.message.parsed, City)


def test_log_probabilities(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(**ASKED, logprobs=True, top_logprobs=2)
    assert answer.choices[0].logprobs is not None
    content = answer.choices[0].logprobs.content
    assert content
    assert all(token.logprob <= 0 and len(token.top_logprobs) == 2 for token in content)
    assert content[0].top_logprobs[0].token == content[0].token


def test_a_stop_string_is_not_part_of_the_answer(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(**ASKED).choices[0].message.content or ""
    stop = whole[3:6]
    answer = client.chat.completions.create(**ASKED, stop=[stop])
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].message.content == whole[: whole.index(stop)]


def test_the_same_seed_gives_the_same_answer(client: openai.OpenAI) -> None:
    first, second = (client.chat.completions.create(**ASKED, temperature=1.0, seed=7) for _ in range(2))
    assert first.choices[0].message.content == second.choices[0].message.content


def test_several_choices(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(**ASKED, n=3, temperature=1.0, seed=7)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    alone = client.chat.completions.create(**ASKED, temperature=1.0, seed=7)
    assert answer.choices[0].message.content == alone.choices[0].message.content
    chunks = client.chat.completions.create(**ASKED, n=2, stream=True)
    assert {chunk.choices[0].index for chunk in chunks} == {0, 1}


@pytest.mark.parametrize(
    ("wrong", "code", "param"),
    [
        ({"temperature": 3}, "invalid_value", "temperature"),
        ({"messages": []}, "invalid_value", "messages"),
        ({"modalities": ["audio"]}, "unsupported_parameter", "modalities"),
    ],
)
def test_what_is_wrong_is_a_bad_request(client: openai.OpenAI, wrong: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**{**ASKED, **wrong})
    assert (refused.value.code, refused.value.param) == (code, param)


def test_an_unknown_model_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as refused:
        client.chat.completions.create(**{**ASKED, "model": "gpt-9"})
    assert refused.value.code == "model_not_found"
