"""The official OpenAI SDK, unmodified, against the whole server."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from openai.resources.realtime.realtime import AsyncRealtimeConnection

from bench.server import Server
from tests.journeys.conftest import ROOT

LIMIT_S = 120
ANSWER_TOKENS = 12
MESSAGES: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture
async def client(server: Server) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0, timeout=LIMIT_S) as client:
        yield client


async def events_until(connection: AsyncRealtimeConnection, event_type: str) -> list[Any]:
    """All events up to the next of this type; an error ends the test."""
    events: list[Any] = []
    async with asyncio.timeout(LIMIT_S):
        while not events or events[-1].type != event_type:
            events.append(await connection.recv())
            assert event_type == "error" or events[-1].type != "error", events[-1]
    return events


def readme_example() -> str:
    blocks: list[str] = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 1
    return blocks[0]


async def test_the_example_of_the_readme_runs_as_it_stands(server: Server, tmp_path: Path) -> None:
    assert len(readme_example().splitlines()) <= 20
    example = tmp_path / "ask.py"
    example.write_text(readme_example())
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(example),
        env=os.environ | {"OPENAI_BASE_URL": f"{server.url}/v1", "OPENAI_API_KEY": "any"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await asyncio.wait_for(process.communicate(), LIMIT_S)
    assert process.returncode == 0, errors.decode()
    answer, _, count = output.decode().rstrip().rpartition("\n")
    assert answer.strip()
    match = re.fullmatch(r"(\d+) of (\d+) prompt tokens were ready", count)
    assert match is not None
    assert 0 < int(match[1]) <= int(match[2])


async def test_a_turn_of_the_realtime_api(client: AsyncOpenAI) -> None:
    async with client.realtime.connect(model="default") as connection:
        created = await connection.recv()
        assert created.type == "session.created"
        await connection.session.update(
            session={"type": "realtime", "output_modalities": ["text"], "instructions": "Answer briefly."}
        )
        updated: Any = (await events_until(connection, "session.updated"))[-1]
        assert updated.session.instructions == "Answer briefly."
        content: Any = [{"type": "input_text", "text": "What is the capital of France?"}]
        await connection.conversation.item.create(item={"type": "message", "role": "user", "content": content})
        await connection.response.create(response={"max_output_tokens": ANSWER_TOKENS})
        events = await events_until(connection, "response.done")
    types = [event.type for event in events]
    assert list(dict.fromkeys(types)) == [
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
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    response = events[-1].response
    assert response.output[0].content[0].text == text
    assert text.strip()
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens
    assert not any(event_type.startswith("midstream.") for event_type in types)


async def test_typed_text_goes_through_the_sdk(client: AsyncOpenAI) -> None:
    async with client.realtime.connect(model="default") as connection:
        for piece in ("What is the capi", "tal of Frame?"):
            event: Any = {"type": "input_text_buffer.append", "text": piece}
            await connection.send(event)
        edit: Any = {"type": "input_text_buffer.replace", "text": "nce", "start": 26, "end": 28}
        await connection.send(edit)
        commit: Any = {"type": "input_text_buffer.commit"}
        await connection.send(commit)
        events = await events_until(connection, "conversation.item.done")
        assert events[-1].item.content[0].text == "What is the capital of France?"
        await connection.response.create(response={"max_output_tokens": ANSWER_TOKENS})
        done = (await events_until(connection, "response.done"))[-1]
    assert done.response.status in ("completed", "incomplete")


async def test_fields_and_events_of_the_extension_go_through_the_sdk(client: AsyncOpenAI) -> None:
    async with client.realtime.connect(model="default") as connection:
        session: Any = {"type": "realtime", "midstream": {"strategy": "prefill", "events": ["turn"]}}
        await connection.session.update(session=session)
        updated: Any = (await events_until(connection, "session.updated"))[-1]
        assert updated.session.midstream["strategy"] == "prefill"
        commit: Any = {"type": "input_text_buffer.commit", "text": "Say hello."}
        await connection.send(commit)
        await connection.response.create(response={"max_output_tokens": 4})
        turn: Any = (await events_until(connection, "midstream.turn"))[-1]
    assert turn.strategy == "prefill"
    assert turn.ttft_ms > 0


async def test_a_function_that_the_client_runs(client: AsyncOpenAI) -> None:
    tool: Any = {
        "type": "function",
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}},
            "required": ["city"],
            "additionalProperties": False,
        },
    }
    async with client.realtime.connect(model="default") as connection:
        await connection.session.update(session={"type": "realtime", "tools": [tool]})
        content: Any = [{"type": "input_text", "text": "How is the weather in Paris?"}]
        await connection.conversation.item.create(item={"type": "message", "role": "user", "content": content})
        await connection.response.create(response={"tool_choice": {"type": "function", "name": "get_weather"}})
        done: Any = (await events_until(connection, "response.done"))[-1]
        call = done.response.output[0]
        assert (call.type, call.name) == ("function_call", "get_weather")
        await connection.conversation.item.create(
            item={"type": "function_call_output", "call_id": call.call_id, "output": "Sunny, 21 degrees."}
        )
        await connection.response.create(response={"max_output_tokens": ANSWER_TOKENS, "tool_choice": "none"})
        answer: Any = (await events_until(connection, "response.done"))[-1]
    assert answer.response.output[0].type == "message"


async def test_a_wrong_event_is_an_error_and_the_session_goes_on(client: AsyncOpenAI) -> None:
    async with client.realtime.connect(model="default") as connection:
        wrong: Any = {"type": "input_text_buffer.commit", "event_id": "mine"}
        await connection.send(wrong)
        error: Any = (await events_until(connection, "error"))[-1]
        assert (error.error.code, error.error.event_id) == ("buffer_empty", "mine")
        await connection.session.update(session={"type": "realtime", "instructions": "Still here."})
        await events_until(connection, "session.updated")


async def test_models_are_listed(client: AsyncOpenAI) -> None:
    models = [model async for model in client.models.list()]
    assert [model.object for model in models] == ["model"]
    assert (await client.models.retrieve(models[0].id)).id == models[0].id


async def test_chat_completions_whole_and_streamed_say_the_same(client: AsyncOpenAI) -> None:
    whole = await client.chat.completions.create(model="default", messages=MESSAGES, max_tokens=ANSWER_TOKENS)
    stream = await client.chat.completions.create(
        model="default",
        messages=MESSAGES,
        max_tokens=ANSWER_TOKENS,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert whole.usage is not None
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


@pytest.mark.parametrize(
    ("parameters", "param"),
    [
        ({"temperature": 3}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, None),
    ],
)
async def test_bad_parameters_are_refused(client: AsyncOpenAI, parameters: dict[str, Any], param: str | None) -> None:
    request = {"model": "default", "messages": MESSAGES, **parameters}
    with pytest.raises(openai.BadRequestError) as refused:
        await client.chat.completions.create(**request)
    assert refused.value.code in ("invalid_value", "unsupported_parameter")
    assert refused.value.param == param if param else refused.value.param


async def test_another_model_is_not_found(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as refused:
        await client.chat.completions.create(model="gpt-9", messages=MESSAGES)
    assert refused.value.code == "model_not_found"
