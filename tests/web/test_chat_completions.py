from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import openai
import pytest
from starlette.middleware.base import BaseHTTPMiddleware

from engine.messages import Grammar, Sampling
from realtime.conversation import FunctionCall, FunctionCallOutput, Message
from realtime.messages import (
    CancelCompletion,
    Completion,
    CompletionPart,
    CompletionUsage,
    FunctionCallPart,
    TokenLogprob,
    TopLogprob,
)
from tests.web.conftest import Answer, Node, Running, Serve, sdk
from web.app import create_app
from web.completion_request import parse_completion_request
from web.errors import ApiError
from web.settings import WebSettings

ASKED: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
TEXT = [CompletionPart(text="Hello"), CompletionPart(text=" there")]
TOLD: dict[str, Any] = {"role": "tool", "content": "Sun"}
PARAMETERS: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER: Any = {"type": "function", "function": {"name": "weather", "description": "Of.", "parameters": PARAMETERS}}
CALLS = (
    CompletionPart(text="I look."),
    CompletionPart(calls=[FunctionCallPart("weather", '{"city": "Oslo"}'), FunctionCallPart("weather", "{}")]),
    CompletionPart(finish_reason="tool_calls", usage=CompletionUsage(9, 4, 3)),
)
LAST = CompletionPart(text="!", finish_reason="stop", usage=CompletionUsage(9, 4, 3))


async def test_a_whole_answer(server: Running, answer: Answer) -> None:
    call = answer(*TEXT, LAST)
    async with sdk(server) as client:
        result = await client.chat.completions.create(**ASKED, max_tokens=7, temperature=0.5, seed=3)
    assert result.object == "chat.completion"
    assert (result.choices[0].message.content, result.choices[0].finish_reason) == ("Hello there!", "stop")
    assert result.usage is not None
    assert (result.usage.prompt_tokens, result.usage.completion_tokens, result.usage.total_tokens) == (9, 3, 12)
    assert result.usage.prompt_tokens_details is not None
    assert result.usage.prompt_tokens_details.cached_tokens == 4
    posted = await call
    assert (posted.max_tokens, posted.sampling, posted.seed) == (7, Sampling(temperature=0.5), 3)
    assert posted.items == [Message("0", "user", ("Hi",))]


async def test_a_streamed_answer(server: Running, answer: Answer) -> None:
    answer(*TEXT, LAST)
    async with sdk(server) as client:
        stream = await client.chat.completions.create(**ASKED, stream=True, stream_options={"include_usage": True})
        chunks = [chunk async for chunk in stream]
    assert len({(chunk.id, chunk.created) for chunk in chunks}) == 1
    assert [chunk.choices[0].delta.role for chunk in chunks[:-1]] == ["assistant", None, None, None, None]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == "Hello there!"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 12


def token(text: str, logprob: float = -0.5) -> TokenLogprob:
    other = TopLogprob("no", -2.0, list(b"no"))
    return TokenLogprob(text, logprob, list(text.encode()), [TopLogprob(text, logprob, list(text.encode())), other])


CHOICES = (
    CompletionPart(index=0, reasoning="Hm."),
    CompletionPart(index=1, text="B", logprobs=[token("B")]),
    CompletionPart(index=0, text="A", logprobs=[token("A")]),
    CompletionPart(index=1, finish_reason="length"),
    CompletionPart(index=0, finish_reason="stop"),
    CompletionPart(usage=CompletionUsage(9, 4, 3, reasoning_tokens=1)),
)


async def test_choices_with_logprobs_and_reasoning(server: Running, answer: Answer) -> None:
    answer(*CHOICES)
    async with sdk(server) as client:
        result = await client.chat.completions.create(**ASKED, n=2, logprobs=True, top_logprobs=2)
    first, second = result.choices
    assert (first.index, first.message.content, first.finish_reason) == (0, "A", "stop")
    assert (second.index, second.message.content, second.finish_reason) == (1, "B", "length")
    assert first.message.model_dump()["reasoning_content"] == "Hm."
    assert "reasoning_content" not in second.message.model_dump()
    assert first.logprobs is not None
    assert first.logprobs.content is not None
    (scored,) = first.logprobs.content
    assert (scored.token, scored.logprob, scored.bytes) == ("A", -0.5, [65])
    assert [(top.token, top.logprob) for top in scored.top_logprobs] == [("A", -0.5), ("no", -2.0)]
    assert result.usage is not None
    assert (result.usage.prompt_tokens, result.usage.total_tokens) == (9, 12)
    assert result.usage.completion_tokens_details is not None
    assert result.usage.completion_tokens_details.reasoning_tokens == 1


async def test_streamed_choices_carry_their_index(server: Running, answer: Answer) -> None:
    answer(*CHOICES)
    async with sdk(server) as client:
        stream = await client.chat.completions.create(**ASKED, n=2, logprobs=True, stream=True)
        chunks = [chunk.choices[0] async for chunk in stream]
    assert [(chunk.index, chunk.delta.role) for chunk in chunks[:2]] == [(0, "assistant"), (1, "assistant")]
    assert chunks[2].delta.model_dump()["reasoning_content"] == "Hm."
    assert [(chunk.index, chunk.delta.content) for chunk in chunks[3:5]] == [(1, "B"), (0, "A")]
    assert chunks[3].logprobs is not None
    assert chunks[3].logprobs.content is not None
    assert chunks[3].logprobs.content[0].token == "B"
    assert [(chunk.index, chunk.finish_reason) for chunk in chunks[5:]] == [(1, "length"), (0, "stop")]


async def test_everything_that_changes_the_answer_reaches_the_node(server: Running, answer: Answer) -> None:
    call = answer(LAST)
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    async with sdk(server) as client:
        await client.chat.completions.create(
            **ASKED,
            top_p=0.5,
            presence_penalty=1,
            frequency_penalty=-1.5,
            logit_bias={"7": -100},
            logprobs=True,
            response_format=wanted,
            extra_body={"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.2},
        )
    posted = await call
    assert posted.sampling == Sampling(
        top_p=0.5,
        top_k=5,
        min_p=0.1,
        repetition_penalty=1.2,
        presence_penalty=1.0,
        frequency_penalty=-1.5,
        logit_bias={7: -100.0},
    )
    assert (posted.seed, posted.top_logprobs, posted.choices) == (None, 0, 1)
    assert posted.grammar == Grammar("json_schema", json.dumps(schema))


async def test_tool_calls_of_a_whole_answer(server: Running, answer: Answer) -> None:
    call = answer(*CALLS)
    async with sdk(server) as client:
        result = await client.chat.completions.create(
            **ASKED, tools=[WEATHER], tool_choice="required", parallel_tool_calls=False
        )
        answer(*CALLS[1:])
        silent = await client.chat.completions.create(**ASKED, tools=[WEATHER])
    choice = result.choices[0]
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "I look.")
    first, second = choice.message.tool_calls or []
    assert (first.type, second.type) == ("function", "function")
    assert (first.function.name, first.function.arguments) == ("weather", '{"city": "Oslo"}')
    assert first.id.startswith("call_")
    assert first.id != second.id
    assert silent.choices[0].message.content is None
    posted = await call
    wanted = {"type": "function", "name": "weather", "description": "Of.", "parameters": PARAMETERS}
    assert (posted.tools, posted.tool_choice, posted.parallel_tool_calls) == ([wanted], "required", False)


async def test_tool_calls_of_a_streamed_answer(server: Running, answer: Answer) -> None:
    named: Any = {"type": "function", "function": {"name": "weather"}}
    call = answer(*CALLS)
    async with sdk(server) as client:
        stream = await client.chat.completions.create(**ASKED, tools=[WEATHER], tool_choice=named, stream=True)
        chunks = [chunk.choices[0] async for chunk in stream]
    deltas = [delta for chunk in chunks for delta in chunk.delta.tool_calls or []]
    assert [delta.index for delta in deltas] == [0, 0, 1, 1]
    assert [delta.function and delta.function.name for delta in deltas] == ["weather", None, "weather", None]
    assert [delta.function and delta.function.arguments for delta in deltas] == ["", '{"city": "Oslo"}', "", "{}"]
    assert [bool(delta.id) for delta in deltas] == [True, False, True, False]
    assert chunks[-1].finish_reason == "tool_calls"
    posted = await call
    assert (posted.tool_choice, posted.parallel_tool_calls) == ({"type": "function", "name": "weather"}, True)


async def test_the_stream_helper_puts_tool_calls_together(server: Running, answer: Answer) -> None:
    answer(*CALLS)
    async with sdk(server) as client, client.chat.completions.stream(**ASKED, tools=[WEATHER]) as stream:
        message = (await stream.get_final_completion()).choices[0].message
    assert message.content == "I look."
    assert [call.function.arguments for call in message.tool_calls or []] == ['{"city": "Oslo"}', "{}"]


def test_calls_and_their_results_are_part_of_the_conversation() -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "Oslo?"},
        {"role": "assistant", "content": "I look.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "Sun"}]},
        {"role": "assistant", "content": None, "tool_calls": [call | {"id": "call_2"}]},
    ]
    asked = parse_completion_request(json.dumps({"model": "tiny", "messages": messages}).encode())
    assert asked.items == [
        Message("0", "user", ("Oslo?",)),
        Message("1", "assistant", ("I look.",)),
        FunctionCall("1.0", "call_1", "weather", "{}"),
        FunctionCallOutput("2", "call_1", "Sun"),
        FunctionCall("3.0", "call_2", "weather", "{}"),
    ]


@pytest.mark.parametrize(
    ("message", "code", "param"),
    [
        (TOLD | {"tool_call_id": "call_1"}, "invalid_value", "messages[0].tool_call_id"),
        ({"role": "assistant", "content": None}, "missing_required_parameter", "messages[0].content"),
    ],
)
async def test_messages_that_fit_nothing_are_refused(
    server: Running, node: Node, message: dict[str, Any], code: str, param: str
) -> None:
    async with sdk(server) as client:
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(**ASKED | {"messages": [message]})
    assert (refused.value.code, refused.value.param) == (code, param)


async def test_an_answer_that_breaks_its_schema_is_an_error(server: Running, answer: Answer) -> None:
    answer(CompletionPart(text="{"), CompletionPart(error_code="invalid_output", error_message="no JSON"))
    async with sdk(server) as client:
        with pytest.raises(openai.InternalServerError) as error:
            await client.chat.completions.create(**ASKED, response_format={"type": "json_object"})
    assert error.value.code == "invalid_output"


@pytest.mark.parametrize(("given", "stops"), [(None, []), ("", []), ([], []), ("\n", ["\n"]), (["a", "b"], ["a", "b"])])
def test_stops_are_one_string_or_several(given: Any, stops: list[str]) -> None:
    assert parse_completion_request(json.dumps({**ASKED, "stop": given}).encode()).stops == stops


async def test_usage_is_only_streamed_on_request(server: Running, answer: Answer) -> None:
    answer(LAST)
    async with server.client() as client:
        text = (await client.post("/v1/chat/completions", json={**ASKED, "stream": True})).text
    records = text.strip().split("\n\n")
    assert records[-1] == "data: [DONE]"
    assert all("usage" not in json.loads(record.removeprefix("data: ")) for record in records[:-1])


async def test_silence_is_filled_with_keepalive_comments(serve: Serve, node: Node) -> None:
    body = {**ASKED, "stream": True}
    async with (
        serve(keepalive_s=0.02) as server,
        server.client() as client,
        client.stream("POST", "/v1/chat/completions", json=body) as response,
    ):
        (call,) = await node.receive(Completion)
        lines = response.aiter_lines()
        while await anext(lines) != ": ping":
            pass
        await node.deliver(call.web, call.connection, LAST)
        assert [line async for line in lines][-2] == "data: [DONE]"


async def test_an_error_before_the_answer_is_a_status(server: Running, answer: Answer) -> None:
    async with sdk(server) as client:
        for stream in (False, True):
            answer(CompletionPart(error_code="context_length_exceeded", error_message="too long"))
            with pytest.raises(openai.BadRequestError) as error:
                await client.chat.completions.create(**ASKED, stream=stream)
            assert error.value.code == "context_length_exceeded"
        answer(CompletionPart(error_code="engine_overloaded", error_message="busy"))
        with pytest.raises(openai.RateLimitError):
            await client.chat.completions.create(**ASKED)


async def test_an_error_within_the_stream_is_a_record(server: Running, answer: Answer) -> None:
    answer(TEXT[0], CompletionPart(error_code="engine_unavailable", error_message="the engine was lost"))
    async with sdk(server) as client:
        with pytest.raises(openai.APIError, match="the engine was lost"):
            async for _ in await client.chat.completions.create(**ASKED, stream=True):
                pass


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_goes_away_cancels_the_call_at_once(server: Running, node: Node, stream: bool) -> None:
    async with server.client() as client:
        asking = asyncio.create_task(client.post("/v1/chat/completions", json={**ASKED, "stream": stream}))
        (call,) = await node.receive(Completion)
        if stream:
            await node.deliver(call.web, call.connection, TEXT[0])
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    (cancelled,) = await node.receive(CancelCompletion)
    assert cancelled.connection == call.connection
    assert server.web.completions == 0


def test_no_middleware_swallows_the_disconnect() -> None:
    """Starlette's `BaseHTTPMiddleware` hides `http.disconnect` from what it wraps."""
    classes = [middleware.cls for middleware in create_app(WebSettings()).user_middleware]
    assert classes
    assert not any(isinstance(cls, type) and issubclass(cls, BaseHTTPMiddleware) for cls in classes)


async def test_a_finished_call_is_not_cancelled(server: Running, node: Node, answer: Answer) -> None:
    answer(LAST)
    async with sdk(server) as client:
        await client.chat.completions.create(**ASKED)
        answer(LAST)
        await client.chat.completions.create(**ASKED)
    assert server.web.completions == 0


async def test_a_lost_node_ends_the_call(serve: Serve, redis_client: Any) -> None:
    from realtime import registry

    async with serve(keepalive_s=0.05) as server, server.client() as client:
        node = Node(redis_client)
        await node.register()
        asking = asyncio.create_task(client.post("/v1/chat/completions", json=ASKED))
        await node.receive(Completion)
        await registry.remove(redis_client, "node-1")
        response = await asking
        assert (response.status_code, response.json()["error"]["code"]) == (503, "engine_unavailable")


async def test_without_a_node_the_answer_is_503(server: Running) -> None:
    async with server.client() as client:
        response = await client.post("/v1/chat/completions", json=ASKED)
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")


async def test_an_unknown_model_is_404(server: Running, node: Node) -> None:
    async with sdk(server) as client:
        with pytest.raises(openai.NotFoundError) as error:
            await client.chat.completions.create(model="gpt-99", messages=ASKED["messages"])
    assert (error.value.code, error.value.param) == ("model_not_found", "model")


async def test_too_many_calls_at_once_are_429(serve: Serve, node: Node) -> None:
    async with serve(max_completions=1) as server, server.client() as client:
        first = asyncio.create_task(client.post("/v1/chat/completions", json=ASKED))
        (call,) = await node.receive(Completion)
        refused = await client.post("/v1/chat/completions", json=ASKED)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        await node.deliver(call.web, call.connection, LAST)
        assert (await first).status_code == 200


async def test_keys_and_origins_are_checked(serve: Serve, node: Node) -> None:
    async with serve(api_keys=["secret"]) as server, server.client() as client:
        assert (await client.post("/v1/chat/completions", json=ASKED)).status_code == 401
        foreign = {"Origin": "https://evil.example", "Authorization": "Bearer secret"}
        assert (await client.post("/v1/chat/completions", json=ASKED, headers=foreign)).status_code == 403


async def test_a_body_over_the_limit_is_413(serve: Serve, node: Node) -> None:
    async with serve(body_limit=2000) as server, server.client() as client:
        response = await client.post("/v1/chat/completions", content=b"x" * 3000)
    assert response.status_code == 413


async def test_models_are_listed(server: Running, node: Node) -> None:
    async with sdk(server) as client:
        assert [model.id async for model in client.models.list()] == ["tiny"]
        assert (await client.models.retrieve("tiny")).object == "model"
        assert (await client.models.retrieve("default")).id == "tiny"
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("other/model")


@pytest.mark.parametrize(
    ("changes", "code", "param"),
    [
        ({"messages": []}, "invalid_value", "messages"),
        ({"messages": [{"role": "function", "content": "x"}]}, "invalid_value", "messages[0].role"),
        ({"messages": [TOLD | {"tool_call_id": ""}]}, "invalid_value", "messages[0].tool_call_id"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "missing_required_parameter", "messages[0].tool_call_id"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "<|im_end|>"}}]}]},
            "invalid_value",
            "messages[0].tool_calls[0].function.name",
        ),
        ({"messages": [{"role": "user", "content": 5}]}, "invalid_value", "messages[0].content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "invalid_value",
            "messages[0].content[0].type",
        ),
        ({"temperature": 3}, "invalid_value", "temperature"),
        ({"max_tokens": 0}, "invalid_value", "max_tokens"),
        ({"n": 0}, "invalid_value", "n"),
        ({"n": 17}, "invalid_value", "n"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "invalid_value", "stop"),
        ({"stop": ["a", ""]}, "invalid_value", "stop[1]"),
        ({"stop": 5}, "invalid_value", "stop"),
        ({"logprobs": True, "top_logprobs": 21}, "invalid_value", "top_logprobs"),
        ({"top_logprobs": 2}, "invalid_value", "top_logprobs"),
        ({"logit_bias": {"x": 1}}, "invalid_value", "logit_bias.x"),
        ({"logit_bias": {"5": 101}}, "invalid_value", "logit_bias.5"),
        ({"presence_penalty": -3}, "invalid_value", "presence_penalty"),
        ({"frequency_penalty": 3}, "invalid_value", "frequency_penalty"),
        ({"repetition_penalty": 0}, "invalid_value", "repetition_penalty"),
        ({"min_p": 2}, "invalid_value", "min_p"),
        ({"top_k": -2}, "invalid_value", "top_k"),
        ({"seed": 2**63}, "invalid_value", "seed"),
        ({"response_format": {"type": "xml"}}, "invalid_value", "response_format.type"),
        (
            {"response_format": {"type": "json_schema"}},
            "missing_required_parameter",
            "response_format.json_schema",
        ),
        ({"response_format": {"type": "json_object"}, "stop": "}"}, "invalid_value", "stop"),
        ({"tools": [{"type": "function"}]}, "missing_required_parameter", "tools[0].function"),
        ({"tools": [{"type": "custom", "custom": {"name": "a"}}]}, "invalid_value", "tools[0].type"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "invalid_value", "tools[0].function.name"),
        ({"tools": [WEATHER, WEATHER]}, "invalid_value", "tools"),
        ({"tool_choice": "required"}, "invalid_value", "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": "some"}, "invalid_value", "tool_choice"),
        (
            {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "other"}}},
            "invalid_value",
            "tool_choice",
        ),
        ({"functions": [{"name": "a"}]}, "unsupported_parameter", "functions"),
        ({"made_up": 1}, "unsupported_parameter", "made_up"),
    ],
)
def test_a_bad_request_names_the_parameter(changes: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises(ApiError) as refused:
        parse_completion_request(json.dumps({**ASKED, **changes}).encode())
    assert (refused.value.status, refused.value.code, refused.value.param) == (400, code, param)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"a":NaN}', b"[" * 10_000, b"\xff"])
def test_a_body_that_is_not_a_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(ApiError) as refused:
        parse_completion_request(body)
    assert refused.value.code == "invalid_json"


def test_a_missing_parameter_is_named() -> None:
    with pytest.raises(ApiError) as refused:
        parse_completion_request(b'{"model": "tiny"}')
    assert (refused.value.code, refused.value.param) == ("missing_required_parameter", "messages")


def test_harmless_parameters_and_text_parts_are_accepted() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "developer", "content": "x"}, {"role": "user", "content": parts}]
    neutral = {
        "n": 1,
        "tools": [],
        "tool_choice": "auto",
        "stop": None,
        "logprobs": False,
        "top_logprobs": 0,
        "user": "u",
    }
    asked = parse_completion_request(json.dumps({"model": "tiny", "messages": messages, **neutral}).encode())
    assert asked.items == [Message("0", "system", ("x",)), Message("1", "user", ("ab",))]


async def test_unknown_paths_under_v1_are_json(server: Running) -> None:
    async with server.client() as client:
        response: httpx.Response = await client.get("/v1/embeddings")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "not_found")
