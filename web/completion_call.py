"""One call of /v1/chat/completions or /v1/responses as the web process sees it: let in, posted to a node, answered part
by part, cancelled or ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import redis
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive

from realtime import inbox
from realtime.events import new_id
from realtime.messages import CancelCompletion, Completion, CompletionPart
from realtime.registry import NodeInfo
from web.auth import authenticate, origin_allowed
from web.errors import ApiError, engine_unavailable
from web.models import DEFAULT_MODEL, model_not_found
from web.state import Web, web_of

log = logging.getLogger(__name__)

_part_decoder = msgspec.json.Decoder(CompletionPart)
_STATUS = {
    "context_length_exceeded": 400,
    "invalid_value": 400,
    "tool_not_found": 400,
    "invalid_output": 500,
    "engine_overloaded": 429,
    "engine_unavailable": 503,
    "cancelled": 503,
}


def let_in(request: Request) -> tuple[Web, str]:
    """The application's state and the owner who asks. Raises `ApiError` 403 or 401."""
    web = web_of(request)
    if not origin_allowed(request, web.settings):
        raise ApiError(403, "origin_not_allowed", "this origin may not ask")
    owner = authenticate(request, web.settings)
    if owner is None:
        raise ApiError(401, "invalid_api_key", "a valid API key is needed")
    return web, owner


async def read_body(request: Request, limit: int) -> bytes:
    """Raises `ApiError` 413 for more than `limit` bytes, 400 for a body that stops early."""
    body = bytearray()
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > limit:
                raise ApiError(413, "request_too_large", f"the body may have at most {limit} bytes")
    except ClientDisconnect:
        raise ApiError(400, "invalid_json", "the body did not arrive") from None
    return bytes(body)


async def start_call(web: Web, request: Request, prefix: str, model: str, **fields: Any) -> CompletionCall:
    """Posts a `Completion` with these fields to a node that serves `model`; the call's id begins with `prefix`.

    Raises `ApiError`: 429 when too many run, 404 without such a model, 503 without a node.
    """
    if web.completions >= web.settings.max_completions:
        raise ApiError(429, "rate_limit_exceeded", "too many requests at once; try again in a moment")
    node = await web.nodes.choose(model="" if model == DEFAULT_MODEL else model)
    if node is None:
        raise model_not_found(model) if web.nodes.live else engine_unavailable()
    call = CompletionCall(web, node, request.receive, prefix)
    try:
        await call.start(**fields)
    except (redis.RedisError, OSError, TimeoutError):
        await call.end()
        raise engine_unavailable() from None
    return call


def raise_error(part: CompletionPart) -> None:
    """Raises the `ApiError` that this part tells of, if it does."""
    if part.error_code:
        raise ApiError(_STATUS.get(part.error_code, 500), part.error_code, part.error_message)


class ClientGone(Exception):
    """The client closed its connection before the answer was complete."""


class CompletionCall:
    """`end` must be called once `start` was, whatever happens; it may be called again."""

    def __init__(self, web: Web, node: NodeInfo, receive: Receive, prefix: str) -> None:
        self.id = new_id(prefix)
        self.created = int(time.time())
        self.model = node.model
        self._web = web
        self._node = node.node
        self._receive = receive
        self._channel = web.channel()
        self._running = False
        self._finished = False

    async def start(self, **fields: Any) -> None:
        """Posts the call. Raises `redis.RedisError`, `OSError` or `TimeoutError`."""
        self._running = True
        self._web.completions += 1
        self._web.relay.open(self.id, self._channel)
        async with asyncio.timeout(self._web.settings.redis_timeout_s):
            await inbox.post(self._web.redis, self._node, Completion(connection=self.id, web=self._web.id, **fields))

    async def parts(self) -> AsyncIterator[CompletionPart | None]:
        """The parts in order; None whenever nothing came for a while. Ends after the part that ends the call.

        Raises `ClientGone`. A node that is lost, or a client that reads too slowly, ends the call with an error part.
        """
        gone = asyncio.create_task(self._wait_for_disconnect())
        waiting: asyncio.Task[list[bytes]] | None = None
        try:
            while not self._finished:
                waiting = waiting or asyncio.create_task(self._channel.take())
                await asyncio.wait(
                    {gone, waiting}, timeout=self._web.settings.keepalive_s, return_when=asyncio.FIRST_COMPLETED
                )
                if gone.done():
                    raise ClientGone
                events = waiting.result() if waiting.done() else []
                if events:
                    waiting = None
                elif self._channel.overflowed.is_set() or not self._web.nodes.is_live(self._node):
                    self._finished = self._channel.overflowed.is_set()
                    yield CompletionPart(error_code="engine_unavailable", error_message="the engine was lost")
                    return
                else:
                    yield None
                for event in events:
                    part = _part_decoder.decode(event)
                    self._finished = bool(part.usage or part.error_code)
                    yield part
        finally:
            for task in (gone, waiting):
                if task is not None:
                    task.cancel()

    async def end(self) -> None:
        """Stops the generation unless it has ended by itself."""
        if not self._running:
            return
        self._running = False
        self._web.completions -= 1
        self._web.relay.close(self.id)
        if self._finished:
            return
        try:
            async with asyncio.timeout(self._web.settings.redis_timeout_s):
                await inbox.post(self._web.redis, self._node, CancelCompletion(self.id))
        except (redis.RedisError, OSError, TimeoutError) as error:
            log.warning("a call could not be cancelled: %s", error)

    async def _wait_for_disconnect(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            while (await self._receive())["type"] != "http.disconnect":
                pass
