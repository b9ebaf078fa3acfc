"""POST /v1/chat/completions, streamed or whole, with the generation stopped at once when the client goes away."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
import redis
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from realtime.messages import CompletionPart, CompletionUsage
from web.auth import authenticate, origin_allowed
from web.completion_call import ClientGone, CompletionCall
from web.completion_request import CompletionRequest, parse_completion_request
from web.errors import ApiError, engine_unavailable
from web.models import DEFAULT_MODEL, model_not_found
from web.state import Web, web_of

_STATUS = {
    "context_length_exceeded": 400,
    "invalid_value": 400,
    "invalid_output": 500,
    "engine_overloaded": 429,
    "engine_unavailable": 503,
    "cancelled": 503,
}


async def chat_completions(request: Request) -> Response:
    """Raises `ApiError` for everything that is known to be wrong before the answer begins."""
    received_at = time.time()
    web = web_of(request)
    if not origin_allowed(request, web.settings):
        raise ApiError(403, "origin_not_allowed", "this origin may not ask")
    if authenticate(request, web.settings) is None:
        raise ApiError(401, "invalid_api_key", "a valid API key is needed")
    asked = parse_completion_request(await _body(request, web.settings.body_limit))
    if web.completions >= web.settings.max_completions:
        raise ApiError(429, "rate_limit_exceeded", "too many requests at once; try again in a moment")
    call = await _start(web, request, asked, received_at)
    try:
        if asked.stream:
            return await _streamed(call, asked)
        return await _whole(call, asked)
    except BaseException as error:
        await call.end()
        if isinstance(error, ClientGone):
            return Response(status_code=499)
        raise


async def _body(request: Request, limit: int) -> bytes:
    body = bytearray()
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > limit:
                raise ApiError(413, "request_too_large", f"the body may have at most {limit} bytes")
    except ClientDisconnect:
        raise ApiError(400, "invalid_json", "the body did not arrive") from None
    return bytes(body)


async def _start(web: Web, request: Request, asked: CompletionRequest, received_at: float) -> CompletionCall:
    model = "" if asked.model == DEFAULT_MODEL else asked.model
    node = await web.nodes.choose(model=model)
    if node is None:
        raise model_not_found(asked.model) if web.nodes.live else engine_unavailable()
    call = CompletionCall(web, node, request.receive)
    try:
        await call.start(
            messages=[message.to_wire() for message in asked.messages],
            max_tokens=asked.token_limit,
            sampling=asked.sampling,
            seed=asked.seed,
            received_at=received_at,
            choices=asked.n or 1,
            stop=asked.stops,
            top_logprobs=asked.top_logprobs_wanted,
            grammar=asked.grammar,
        )
    except (redis.RedisError, OSError, TimeoutError):
        await call.end()
        raise engine_unavailable() from None
    return call


async def _whole(call: CompletionCall, asked: CompletionRequest) -> Response:
    choices = [_WholeChoice(index, bool(asked.logprobs)) for index in range(asked.n or 1)]
    async for part in call.parts():
        if part is None:
            continue
        _raise_error(part)
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
        self._logprobs: list[dict[str, Any]] | None = [] if logprobs else None
        self._finish_reason = ""

    def add(self, part: CompletionPart) -> None:
        self._text.append(part.text)
        self._reasoning.append(part.reasoning)
        if self._logprobs is not None:
            self._logprobs += msgspec.to_builtins(part.logprobs)
        self._finish_reason = part.finish_reason or self._finish_reason

    def to_wire(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": "".join(self._text), "refusal": None}
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


async def _streamed(call: CompletionCall, asked: CompletionRequest) -> Response:
    """Waits a moment for the first part, so that an early failure is still a status code and not a broken stream."""
    parts = call.parts()
    first = await anext(parts)
    if first is not None:
        _raise_error(first)
    return _Stream(call, _chain(first, parts), asked)


async def _chain(
    first: CompletionPart | None, rest: AsyncIterator[CompletionPart | None]
) -> AsyncIterator[CompletionPart | None]:
    yield first
    async for part in rest:
        yield part


def _raise_error(part: CompletionPart) -> None:
    if part.error_code:
        raise ApiError(_STATUS.get(part.error_code, 500), part.error_code, part.error_message)


class _Stream(Response):
    """Server-sent chunks; not Starlette's streaming response, because the call itself watches for the disconnect."""

    def __init__(
        self, call: CompletionCall, parts: AsyncIterator[CompletionPart | None], asked: CompletionRequest
    ) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(status_code=200, headers=headers, media_type="text/event-stream")
        del self.headers["content-length"]
        self._call = call
        self._parts = parts
        self._choices = asked.n or 1
        self._usage = asked.include_usage

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            with contextlib.suppress(ClientGone):
                async for record in self._records():
                    await send({"type": "http.response.body", "body": record, "more_body": True})
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            # Shielded: the node must hear of it also when this task is being cancelled.
            await asyncio.shield(self._call.end())

    async def _records(self) -> AsyncIterator[bytes]:
        for index in range(self._choices):
            yield self._chunk(index, {"role": "assistant", "content": ""})
        async for part in self._parts:
            if part is None:
                yield b": ping\n\n"
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
