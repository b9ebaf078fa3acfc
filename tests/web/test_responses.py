"""/v1/responses through the official SDK, with the test in the place of the node."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import openai
import pytest
import redis.asyncio

from engine.messages import Grammar, Sampling
from realtime import keys
from realtime.conversation import FunctionCall, FunctionCallOutput, Item, Message
from realtime.messages import (
    CancelCompletion,
    Completion,
    CompletionPart,
    CompletionUsage,
    Delivery,
    FunctionCallPart,
    TokenLogprob,
)
from realtime.redis_connection import connect
from tests.web.conftest import Answer, Node, Running, Serve, Valkey, sdk
from web.errors import ApiError
from web.responses_request import parse_responses_request

ASKED: dict[str, Any] = {"model": "tiny", "input": "Hi"}
USAGE = CompletionUsage(9, 4, 3, reasoning_tokens=1)
HELLO = (CompletionPart(text="Hel"), CompletionPart(text="lo", finish_reason="stop"), CompletionPart(usage=USAGE))
PARAMETERS: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER: Any = {"type": "function", "name": "weather", "description": "Of.", "parameters": PARAMETERS, "strict": True}
CALLS = (
    CompletionPart(text="I look."),
    CompletionPart(calls=[FunctionCallPart("weather", '{"city": "Oslo"}')], finish_reason="tool_calls"),
    CompletionPart(usage=USAGE),
)


def said(items: list[Item]) -> list[tuple[str, ...]]:
    """Items without their ids."""
    found: list[tuple[str, ...]] = []
    for item in items:
        if isinstance(item, Message):
            found.append((item.role, item.text))
        elif isinstance(item, FunctionCall):
            found.append(("call", item.call_id, item.name, item.arguments))
        elif isinstance(item, FunctionCallOutput):
            found.append(("output", item.call_id, item.output))
    return found


async def test_a_whole_answer(server: Running, answer: Answer) -> None:
    call = answer(*HELLO)
    async with sdk(server) as client:
        result = await client.responses.create(
            **ASKED, instructions="Be brief.", max_output_tokens=7, temperature=0.5, metadata={"a": "b"}
        )
    assert (result.object, result.status, result.output_text) == ("response", "completed", "Hello")
    assert (result.model, result.metadata, result.max_output_tokens) == ("tiny", {"a": "b"}, 7)
    assert result.usage is not None
    assert (result.usage.input_tokens, result.usage.output_tokens, result.usage.total_tokens) == (9, 3, 12)
    assert result.usage.input_tokens_details.cached_tokens == 4
    assert result.usage.output_tokens_details.reasoning_tokens == 1
    posted = await call
    assert said(posted.items) == [("system", "Be brief."), ("user", "Hi")]
    assert (posted.max_tokens, posted.sampling, posted.choices) == (7, Sampling(temperature=0.5), 1)


async def test_a_streamed_answer(server: Running, answer: Answer) -> None:
    answer(*HELLO)
    async with sdk(server) as client:
        events = [event async for event in await client.responses.create(**ASKED, stream=True)]
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert [event.delta for event in events if event.type == "response.output_text.delta"] == ["Hel", "lo"]
        last = events[-1]
        assert last.type == "response.completed"
        # It is stored before the client hears of its end.
        assert (await client.responses.retrieve(last.response.id)).output_text == "Hello"


async def test_the_stream_helper_puts_a_response_together(server: Running, answer: Answer) -> None:
    answer(CompletionPart(reasoning="Hm."), *CALLS)
    async with sdk(server) as client, client.responses.stream(**ASKED, tools=[WEATHER]) as stream:
        response: Any = await stream.get_final_response()
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call"]
    assert response.output[2].parsed_arguments == {"city": "Oslo"}
    assert response.output_text == "I look."


async def test_everything_that_changes_the_answer_reaches_the_node(server: Running, answer: Answer) -> None:
    call = answer(*HELLO)
    named: Any = {"type": "function", "name": "weather"}
    extra = {"seed": 5, "stop": ["x"], "top_k": 5, "presence_penalty": 1.0, "logit_bias": {"7": -100}}
    async with sdk(server) as client:
        result = await client.responses.create(
            **ASKED,
            top_p=0.5,
            tools=[WEATHER],
            tool_choice=named,
            parallel_tool_calls=False,
            include=["message.output_text.logprobs"],
            top_logprobs=2,
            extra_body=extra,
        )
    posted = await call
    assert posted.sampling == Sampling(top_p=0.5, top_k=5, presence_penalty=1.0, logit_bias={7: -100.0})
    assert (posted.seed, posted.stop, posted.top_logprobs, posted.grammar) == (5, ["x"], 2, None)
    assert (posted.tools, posted.tool_choice, posted.parallel_tool_calls) == ([WEATHER], named, False)
    assert [tool.to_dict() for tool in result.tools] == [WEATHER]


async def test_structured_output(server: Running, answer: Answer) -> None:
    call = answer(CompletionPart(text='{"a": 1}', finish_reason="stop"), CompletionPart(usage=USAGE))
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    wanted: Any = {"format": {"type": "json_schema", "name": "a", "schema": schema, "strict": True}}
    async with sdk(server) as client:
        result = await client.responses.create(**ASKED, text=wanted)
    assert (await call).grammar == Grammar("json_schema", json.dumps(schema))
    assert result.text is not None
    assert result.text.format is not None
    assert result.text.format.type == "json_schema"


async def test_log_probabilities_belong_to_the_text(server: Running, answer: Answer) -> None:
    scored = [TokenLogprob("A", -0.5, [65], [])]
    answer(CompletionPart(text="A", logprobs=scored, finish_reason="stop"), CompletionPart(usage=USAGE))
    async with sdk(server) as client:
        result: Any = await client.responses.create(**ASKED, include=["message.output_text.logprobs"])
    assert [(token.token, token.logprob) for token in result.output[0].content[0].logprobs] == [("A", -0.5)]


async def test_a_conversation_goes_on_from_a_stored_response(server: Running, answer: Answer) -> None:
    answer(*CALLS)
    async with sdk(server) as client:
        first: Any = await client.responses.create(**ASKED, tools=[WEATHER], instructions="Be brief.")
        call_id = first.output[1].call_id
        result: Any = [{"type": "function_call_output", "call_id": call_id, "output": "Sun"}]
        second_call = answer(*HELLO)
        second = await client.responses.create(model="tiny", input=result, previous_response_id=first.id)
        third_call = answer(*HELLO)
        third = await client.responses.create(model="tiny", input="Bye", previous_response_id=second.id)
    history = [("user", "Hi"), ("assistant", "I look."), ("call", call_id, "weather", '{"city": "Oslo"}')]
    history += [("output", call_id, "Sun")]
    # Instructions are those of one request.
    assert said((await second_call).items) == history
    assert said((await third_call).items) == [*history, ("assistant", "Hello"), ("user", "Bye")]
    assert third.previous_response_id == second.id


async def test_items_of_all_kinds_are_a_conversation(server: Running, answer: Answer) -> None:
    items: list[Any] = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "input_text", "text": "Oslo"}, {"type": "input_text", "text": "?"}]},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "I look.", "annotations": []}],
        },
        {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": [{"type": "input_text", "text": "Sun"}]},
    ]
    call = answer(*HELLO)
    async with sdk(server) as client:
        result = await client.responses.create(model="tiny", input=items)
        listed = await client.responses.input_items.list(result.id, order="asc")
    expected = [("system", "Be brief."), ("user", "Oslo?"), ("assistant", "I look.")]
    posted = await call
    assert said(posted.items) == [*expected, ("call", "call_1", "weather", "{}"), ("output", "call_1", "Sun")]
    assert len({item.id for item in posted.items}) == 5
    types = ["message", "message", "message", "function_call", "function_call_output"]
    assert [item.type for item in listed.data] == types


async def test_a_response_that_is_not_to_be_stored_is_not(server: Running, answer: Answer) -> None:
    answer(*HELLO)
    async with sdk(server) as client:
        result = await client.responses.create(**ASKED, store=False)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(result.id)
        with pytest.raises(openai.BadRequestError) as refused:
            await client.responses.create(**ASKED, previous_response_id=result.id)
    assert (refused.value.code, refused.value.param) == ("previous_response_not_found", "previous_response_id")


async def test_a_deleted_response_is_gone(server: Running, answer: Answer) -> None:
    answer(*HELLO)
    async with sdk(server) as client:
        result = await client.responses.create(**ASKED)
        assert (await client.responses.retrieve(result.id)).to_dict() == result.to_dict()
        await client.responses.delete(result.id)
        for gone in (client.responses.retrieve, client.responses.delete):
            with pytest.raises(openai.NotFoundError):
                await gone(result.id)


async def test_a_stored_response_is_its_owners_and_ends_some_time(
    serve: Serve, answer: Answer, redis_client: redis.asyncio.Redis
) -> None:
    async with serve(api_keys=["mine", "other"], session_retention_s=100) as server:
        answer(*HELLO)
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="mine") as client:
            result = await client.responses.create(**ASKED)
        assert 0 < await redis_client.ttl(keys.response(result.id)) <= 100
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="other") as client:
            with pytest.raises(openai.NotFoundError):
                await client.responses.retrieve(result.id)
            with pytest.raises(openai.BadRequestError):
                await client.responses.create(**ASKED, previous_response_id=result.id)


async def test_only_background_responses_could_be_cancelled(server: Running, answer: Answer) -> None:
    answer(*HELLO)
    async with sdk(server) as client:
        result = await client.responses.create(**ASKED)
        with pytest.raises(openai.BadRequestError):
            await client.responses.cancel(result.id)


async def test_an_error_before_the_answer_is_a_status(server: Running, answer: Answer) -> None:
    async with sdk(server) as client:
        for stream in (False, True):
            answer(CompletionPart(error_code="context_length_exceeded", error_message="too long"))
            with pytest.raises(openai.BadRequestError) as error:
                await client.responses.create(**ASKED, stream=stream)
            assert error.value.code == "context_length_exceeded"


async def test_an_error_within_the_stream_is_a_failed_response(server: Running, answer: Answer) -> None:
    answer(HELLO[0], CompletionPart(error_code="engine_unavailable", error_message="the engine was lost"))
    async with sdk(server) as client:
        events = [event async for event in await client.responses.create(**ASKED, stream=True)]
    last = events[-1]
    assert last.type == "response.failed"
    assert last.response.error is not None
    assert (last.response.error.code, last.response.status) == ("engine_unavailable", "failed")
    assert [event.sequence_number for event in events] == list(range(len(events)))


async def test_a_response_that_cannot_be_stored_is_no_success(serve: Serve, own_valkey: Valkey) -> None:
    redis_client = connect(own_valkey.url)
    async with serve(redis_url=own_valkey.url, redis_timeout_s=0.2) as server, sdk(server) as client:
        node = Node(redis_client)
        await node.register()
        asking = asyncio.create_task(client.responses.create(**ASKED, stream=True))
        (call,) = await node.receive(Completion)
        await node.deliver(call.web, call.connection, HELLO[0])
        stream = aiter(await asking)
        await anext(stream)
        own_valkey.stop()
        rest = [Delivery(call.connection, msgspec.Raw(msgspec.json.encode(part))) for part in HELLO[1:]]
        server.web.relay.distribute(rest)
        events = [event async for event in stream]
        own_valkey.start()
    await redis_client.aclose()
    last = events[-1]
    assert last.type == "response.failed"
    assert last.response.error is not None
    assert last.response.error.code == "store_unavailable"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_goes_away_cancels_the_call_at_once(server: Running, node: Node, stream: bool) -> None:
    async with server.client() as client:
        asking = asyncio.create_task(client.post("/v1/responses", json={**ASKED, "stream": stream}))
        (call,) = await node.receive(Completion)
        if stream:
            await node.deliver(call.web, call.connection, HELLO[0])
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    (cancelled,) = await node.receive(CancelCompletion)
    assert cancelled.connection == call.connection
    assert server.web.completions == 0


async def test_keys_are_checked_everywhere(serve: Serve, node: Node) -> None:
    async with serve(api_keys=["secret"]) as server, server.client() as client:
        assert (await client.post("/v1/responses", json=ASKED)).status_code == 401
        for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/input_items"), ("POST", "/cancel")):
            assert (await client.request(method, f"/v1/responses/resp_1{path}")).status_code == 401


@pytest.mark.parametrize(
    ("changes", "code", "param"),
    [
        ({"input": []}, "invalid_value", "input"),
        ({"input": None}, "invalid_value", "input"),
        ({"input": [{"role": "tool", "content": "x"}]}, "invalid_value", "input[0].role"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "invalid_value", "input[0].type"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "invalid_value",
            "input[0].content[0].type",
        ),
        (
            {"input": [{"type": "function_call", "call_id": "c", "name": "<|im_end|>", "arguments": ""}]},
            "invalid_value",
            "input[0].name",
        ),
        ({"temperature": 3}, "invalid_value", "temperature"),
        ({"max_output_tokens": 0}, "invalid_value", "max_output_tokens"),
        ({"top_logprobs": 21}, "invalid_value", "top_logprobs"),
        ({"metadata": {"a": 5}}, "invalid_value", "metadata.a"),
        ({"include": ["file_search_call.results"]}, "invalid_value", "include[0]"),
        ({"text": {"format": {"type": "xml"}}}, "invalid_value", "text.format.type"),
        (
            {"text": {"format": {"type": "json_schema", "name": "a"}}},
            "missing_required_parameter",
            "text.format.schema",
        ),
        ({"text": {"format": {"type": "json_object"}}, "stop": "}"}, "invalid_value", "stop"),
        ({"tools": [{"type": "web_search"}]}, "invalid_value", "tools[0].type"),
        ({"tools": [{"type": "mcp", "server_label": "midstream"}]}, "invalid_value", "tools[0].type"),
        ({"tools": [WEATHER, WEATHER]}, "invalid_value", "tools"),
        ({"tool_choice": {"type": "function", "name": "x"}}, "invalid_value", "tool_choice"),
        ({"tool_choice": "required"}, "invalid_value", "tool_choice"),
        ({"background": True}, "unsupported_parameter", "background"),
        ({"conversation": "conv_1"}, "unsupported_parameter", "conversation"),
        ({"truncation": "auto"}, "unsupported_parameter", "truncation"),
        ({"n": 2}, "unsupported_parameter", "n"),
        ({"prompt": {"id": "x"}}, "unsupported_parameter", "prompt"),
    ],
)
def test_a_bad_request_names_the_parameter(changes: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises(ApiError) as refused:
        parse_responses_request(json.dumps({**ASKED, **changes}).encode())
    assert (refused.value.status, refused.value.code, refused.value.param) == (400, code, param)


async def test_the_output_of_an_unknown_call_is_refused(server: Running, node: Node) -> None:
    items: Any = [{"type": "function_call_output", "call_id": "call_1", "output": "x"}]
    async with sdk(server) as client:
        with pytest.raises(openai.BadRequestError) as refused:
            await client.responses.create(model="tiny", input=items)
    assert (refused.value.code, refused.value.param) == ("invalid_value", "input[0].call_id")
