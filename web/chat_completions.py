"""POST /v1/chat/completions, streamed or whole, with the generation stopped at once when the client goes away."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from realtime.ids import new_id
from realtime.messages import CompletionPart, CompletionUsage, FunctionCallPart
from web.completion_call import ClientGone, CompletionCall, let_in, raise_error, read_body, start_call
from web.completion_request import CompletionRequest, parse_completion_request
from web.completion_stream import PING, RecordStream, begun
from web.errors import ApiError, engine_unavailable


async def chat_completions(request: Request) -> Response:
    """Raises `ApiError` for everything that is known to be wrong before the answer begins."""
    received_at = time.time()
    web, _ = let_in(request)
    asked = parse_completion_request(await read_body(request, web.settings.body_limit))
    call = await start_call(
        web,
        request,
        "chatcmpl-",
        asked.model,
        items=asked.items,
        max_tokens=asked.token_limit,
        sampling=asked.sampling,
        seed=asked.seed,
        received_at=received_at,
        choices=asked.n or 1,
        stop=asked.stops,
        top_logprobs=asked.top_logprobs_wanted,
        grammar=asked.grammar,
        tools=[tool.to_wire() for tool in asked.tools or []],
        tool_choice=asked.choice,
        parallel_tool_calls=asked.parallel_tool_calls is not False,
    )
    try:
        if asked.stream:
            return RecordStream(call, _Chunks(call, asked).records(await begun(call.parts())))
        return await _whole(call, asked)
    except BaseException as error:
        await call.end()
        if isinstance(error, ClientGone):
            return Response(status_code=499)
        raise


async def _whole(call: CompletionCall, asked: CompletionRequest) -> Response:
    choices = [_WholeChoice(index, bool(asked.logprobs)) for index in range(asked.n or 1)]
    async for part in call.parts():
        if part is None:
            continue
        raise_error(part)
        choices[part.index].add(part)
        if part.usage is not None:
            await call.end()
            wire = [choice.to_wire() for choice in choices]
            return JSONResponse(_envelope(call, "chat.completion", wire, usage=_usage(part.usage)))
    raise engine_unavailable()


class _WholeChoice:
    """One choice, collected from its parts."""

    def __init__(self, index: int, logprobs: bool) -> None:
        self._index = index
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[FunctionCallPart] = []
        self._logprobs: list[dict[str, Any]] | None = [] if logprobs else None
        self._finish_reason = ""

    def add(self, part: CompletionPart) -> None:
        self._text.append(part.text)
        self._reasoning.append(part.reasoning)
        self._calls += part.calls
        if self._logprobs is not None:
            self._logprobs += msgspec.to_builtins(part.logprobs)
        self._finish_reason = part.finish_reason or self._finish_reason

    def to_wire(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": "".join(self._text), "refusal": None}
        if self._calls:
            message["content"] = message["content"] or None
            message["tool_calls"] = [_call(call.name, call.arguments) for call in self._calls]
        if reasoning := "".join(self._reasoning):
            message["reasoning_content"] = reasoning
        return {
            "index": self._index,
            "message": message,
            "finish_reason": self._finish_reason,
            "logprobs": _logprobs(self._logprobs),
        }


def _logprobs(content: list[dict[str, Any]] | None) -> dict[str, Any] | None:
    return None if content is None else {"content": content, "refusal": None}


def _call(name: str, arguments: str) -> dict[str, Any]:
    return {"id": new_id("call_"), "type": "function", "function": {"name": name, "arguments": arguments}}


class _Chunks:
    """Parts as the records of a stream."""

    def __init__(self, call: CompletionCall, asked: CompletionRequest) -> None:
        self._call = call
        self._calls_made = [0] * (asked.n or 1)
        self._usage = asked.include_usage

    async def records(self, parts: AsyncIterator[CompletionPart | None]) -> AsyncIterator[bytes]:
        for index in range(len(self._calls_made)):
            yield self._chunk(index, {"role": "assistant", "content": ""})
        async for part in parts:
            if part is None:
                yield PING
                continue
            if part.error_code:
                yield _record(ApiError(500, part.error_code, part.error_message).to_wire())
                return
            for record in self._chunks(part):
                yield record
            if part.usage is not None:
                if self._usage:
                    yield _record(_envelope(self._call, "chat.completion.chunk", [], usage=_usage(part.usage)))
                yield b"data: [DONE]\n\n"
                return

    def _chunks(self, part: CompletionPart) -> Iterator[bytes]:
        if part.reasoning:
            yield self._chunk(part.index, {"reasoning_content": part.reasoning})
        if part.text or part.logprobs:
            logprobs = _logprobs(msgspec.to_builtins(part.logprobs)) if part.logprobs else None
            yield self._chunk(part.index, {"content": part.text}, logprobs=logprobs)
        for call in part.calls:
            number = self._calls_made[part.index]
            self._calls_made[part.index] += 1
            yield self._chunk(part.index, {"tool_calls": [{"index": number, **_call(call.name, "")}]})
            arguments = {"index": number, "function": {"arguments": call.arguments}}
            yield self._chunk(part.index, {"tool_calls": [arguments]})
        if part.finish_reason:
            yield self._chunk(part.index, {}, part.finish_reason)

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        finish_reason: str | None = None,
        logprobs: dict[str, Any] | None = None,
    ) -> bytes:
        choice = {"index": index, "delta": delta, "finish_reason": finish_reason, "logprobs": logprobs}
        extra = {"usage": None} if self._usage else {}
        return _record(_envelope(self._call, "chat.completion.chunk", [choice], **extra))


def _envelope(call: CompletionCall, kind: str, choices: list[dict[str, Any]], **extra: Any) -> dict[str, Any]:
    return {
        "id": call.id,
        "object": kind,
        "created": call.created,
        "model": call.model,
        "choices": choices,
        **extra,
    }


def _usage(usage: CompletionUsage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def _record(data: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % msgspec.json.encode(data)
