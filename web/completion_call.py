"""One chat-completion call as the web process sees it: posted to a node, answered part by part, cancelled or ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import redis
from starlette.types import Receive

from realtime import inbox
from realtime.events import new_id
from realtime.messages import CancelCompletion, Completion, CompletionPart
from realtime.registry import NodeInfo
from web.state import Web

log = logging.getLogger(__name__)

_part_decoder = msgspec.json.Decoder(CompletionPart)


class ClientGone(Exception):
    """The client closed its connection before the answer was complete."""


class CompletionCall:
    """`end` must be called once `start` was, whatever happens; it may be called again."""

    def __init__(self, web: Web, node: NodeInfo, receive: Receive) -> None:
        self.id = new_id("chatcmpl-")
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
