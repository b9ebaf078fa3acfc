"""The host's side of a server-run tool: dispatch, deadline, lost workers, cancel. The first result of a call wins."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from typing import Any

import redis
import redis.asyncio
from kombu.exceptions import OperationalError

from realtime import keys
from realtime.messages import ToolJob, ToolMessage, ToolProgress, ToolResult, ToolStarted
from realtime.publisher import Publisher
from realtime.settings import RealtimeSettings
from realtime.tool_queue import ToolQueue
from realtime.tools import ServerTool

log = logging.getLogger(__name__)

RECORD_TTL_S = 3600
WORKER_CHECK_S = 1.0
MAX_ATTEMPTS = 2

Listener = Callable[[ToolMessage], None]


class _Call:
    """A call in flight: what the inbox has said of it so far."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.attempt = 1
        self.worker = ""
        self.progress = -math.inf
        self.result: asyncio.Future[ToolResult] = asyncio.get_running_loop().create_future()


class ToolDispatch:
    """Runs tools on the workers. `on_message` is fed from the node's inbox."""

    def __init__(self, client: redis.asyncio.Redis, publisher: Publisher, settings: RealtimeSettings) -> None:
        self._client = client
        self._publisher = publisher
        self._settings = settings
        self._queue = ToolQueue(settings.redis_url)
        self._calls: dict[str, _Call] = {}

    @property
    def running(self) -> int:
        """Calls in flight."""
        return len(self._calls)

    def forget(self, call_id: str) -> None:
        """Nobody will ask for this call again: its output goes, and a worker that still has it stores none."""
        self._publisher.write(lambda pipeline: pipeline.delete(keys.tool(call_id)))
        self._publisher.write(lambda pipeline: pipeline.hset(keys.tool(call_id), mapping={"cancel": "1"}))
        self._publisher.write(lambda pipeline: pipeline.expire(keys.tool(call_id), RECORD_TTL_S))

    async def run(self, session: str, call_id: str, tool: ServerTool, arguments: str, listener: Listener) -> ToolResult:
        """The result, always: a hung, lost or unreachable worker gives a `ToolResult` with an error. When the caller is
        cancelled the worker is told, and whatever it still sends is ignored.

        `listener` hears what the worker says, the result included, as it arrives: progress only grows, nothing comes
        after the result or from an attempt that was given up."""
        call = self._calls[call_id] = _Call(listener)
        try:
            return await self._attempts(session, call_id, call, tool, arguments)
        except asyncio.CancelledError:
            self._publisher.write(lambda pipeline: pipeline.hset(keys.tool(call_id), mapping={"cancel": "1"}))
            raise
        finally:
            del self._calls[call_id]

    def on_message(self, message: ToolMessage) -> None:
        """Ignores messages of unknown calls (cancelled, timed out, of an earlier process), of calls that are over and
        of given-up attempts."""
        call = self._calls.get(message.call)
        if call is None or call.result.done():
            return
        if message.attempt != call.attempt and not isinstance(message, ToolResult):
            return
        if isinstance(message, ToolStarted):
            call.worker = message.worker
        elif isinstance(message, ToolProgress):
            if not message.progress > call.progress:
                return
            call.progress = message.progress
        elif isinstance(message, ToolResult):
            call.result.set_result(message)
        call.listener(message)

    async def _attempts(self, session: str, call_id: str, call: _Call, tool: ServerTool, arguments: str) -> ToolResult:
        while True:
            error = await self._send(session, call_id, call, tool, arguments)
            result = error or await self._wait(call_id, call, tool)
            if result is not None:
                return result
            if not tool.idempotent or call.attempt >= MAX_ATTEMPTS:
                return _failure(call_id, call, "the worker running this tool was lost")
            call.attempt, call.worker, call.progress = call.attempt + 1, "", -math.inf
            log.warning("call %s: worker lost, attempt %d", call_id, call.attempt)

    async def _send(
        self, session: str, call_id: str, call: _Call, tool: ServerTool, arguments: str
    ) -> ToolResult | None:
        now = time.time()
        record: dict[Any, Any] = {
            "session": session,
            "node": self._settings.node_id,
            "name": tool.name,
            "attempt_sent": call.attempt,
            "dispatched_at": now,
        }
        self._publisher.write(lambda pipeline: pipeline.hset(keys.tool(call_id), mapping=record))
        self._publisher.write(lambda pipeline: pipeline.expire(keys.tool(call_id), RECORD_TTL_S))
        job = ToolJob(call_id, call.attempt, self._settings.node_id, tool.name, arguments, now)
        try:
            await self._queue.send(job)
        except (OperationalError, OSError) as error:
            log.warning("call %s: no broker: %s", call_id, error)
            return _failure(call_id, call, "the tool queue is unreachable")
        return None

    async def _wait(self, call_id: str, call: _Call, tool: ServerTool) -> ToolResult | None:
        """The result, a failure at the deadline, or None when the worker that had the call is gone."""
        deadline = time.monotonic() + self._settings.tool_queue_wait_s + tool.time_limit_s
        while time.monotonic() < deadline:
            done, _ = await asyncio.wait({call.result}, timeout=WORKER_CHECK_S)
            if done:
                return call.result.result()
            if call.worker and not await self._alive(call.worker):
                return None
        return _failure(call_id, call, "the tool did not answer in time")

    async def _alive(self, worker: str) -> bool:
        try:
            return bool(await self._client.exists(keys.worker(worker)))
        except redis.RedisError:
            return True  # Redis is away, which says nothing about the worker


def _failure(call_id: str, call: _Call, error: str) -> ToolResult:
    now = time.time()
    return ToolResult(call_id, call.attempt, "", error, now, now)
