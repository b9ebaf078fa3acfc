"""POST /v1/chat/completions, streamed or whole, with the generation stopped at once when the client goes away."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import redis
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from engine.messages import Sampling
from realtime.messages import CompletionPart
from web.auth import authenticate, origin_allowed
from web.completion_call import ClientGone, CompletionCall
from web.completion_request import CompletionRequest, parse_completion_request
from web.errors import ApiError, engine_unavailable
from web.models import DEFAULT_MODEL, model_not_found
from web.state import Web, web_of

_SAMPLING = Sampling()
_STATUS = {
    "context_length_exceeded": 400,
    "invalid_value": 400,
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
        return await _whole(call)
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
            temperature=_SAMPLING.temperature if asked.temperature is None else asked.temperature,
            top_p=_SAMPLING.top_p if asked.top_p is None else asked.top_p,
            seed=asked.seed,
            received_at=received_at,
        )
    except (redis.RedisError, OSError, TimeoutError):
        await call.end()
        raise engine_unavailable() from None
    return call


async def _whole(call: CompletionCall) -> Response:
    text: list[str] = []
    async for part in call.parts():
        if part is None:
            continue
        _raise_error(part)
        text.append(part.text)
        if part.finish_reason:
            choice = {
                "index": 0,
                "message": {"role": "assistant", "content": "".join(text), "refusal": None},
                "finish_reason": part.finish_reason,
                "logprobs": None,
            }
            await call.end()
            return JSONResponse(_envelope(call, "chat.completion", [choice], usage=_usage(part)))
    raise engine_unavailable()


async def _streamed(call: CompletionCall, asked: CompletionRequest) -> Response:
    """Waits a moment for the first part, so that an early failure is still a status code and not a broken stream."""
    parts = call.parts()
    first = await anext(parts)
    if first is not None:
        _raise_error(first)
    return _Stream(call, _chain(first, parts), asked.include_usage)


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

    def __init__(self, call: CompletionCall, parts: AsyncIterator[CompletionPart | None], usage: bool) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(status_code=200, headers=headers, media_type="text/event-stream")
        del self.headers["content-length"]
        self._call = call
        self._parts = parts
        self._usage = usage

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
        yield self._chunk({"role": "assistant", "content": ""})
        async for part in self._parts:
            if part is None:
                yield b": ping\n\n"
                continue
            if part.error_code:
                yield _record(ApiError(500, part.error_code, part.error_message).to_wire())
                return
            if part.text:
                yield self._chunk({"content": part.text})
            if part.finish_reason:
                yield self._chunk({}, part.finish_reason)
                if self._usage:
                    yield _record(_envelope(self._call, "chat.completion.chunk", [], usage=_usage(part)))
                yield b"data: [DONE]\n\n"
                return

    def _chunk(self, delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason, "logprobs": None}
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


def _usage(part: CompletionPart) -> dict[str, Any]:
    return {
        "prompt_tokens": part.prompt_tokens,
        "completion_tokens": part.completion_tokens,
        "total_tokens": part.prompt_tokens + part.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": part.cached_tokens},
    }


def _record(data: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % msgspec.json.encode(data)
