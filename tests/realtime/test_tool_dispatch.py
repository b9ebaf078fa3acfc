"""The host's side of a tool call; the test answers in the worker's place, over the real queue's Redis."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
import redis

from realtime import keys, tool_dispatch
from realtime.messages import ToolMessage, ToolPartial, ToolProgress, ToolResult, ToolStarted
from realtime.publisher import Publisher
from realtime.redis_connection import connect
from realtime.settings import RealtimeSettings
from realtime.tool_dispatch import ToolDispatch
from realtime.tool_queue import QUEUE
from realtime.tools import CALCULATOR, ServerTool

ONCE_ONLY = replace(CALCULATOR, idempotent=False)


class Bench:
    """A dispatch with its Redis, and the call that the test is about."""

    def __init__(self, dispatch: ToolDispatch, client: redis.Redis, flush: Callable[[], Awaitable[None]]) -> None:
        self.dispatch = dispatch
        self.client = client
        self.flush = flush
        self.heard: list[ToolMessage] = []

    def call(self, tool: ServerTool = CALCULATOR) -> asyncio.Task[ToolResult]:
        self.queue().flushdb()
        return asyncio.create_task(self.dispatch.run("s", "call_1", tool, "{}", self._hear))

    def _hear(self, message: ToolMessage) -> None:
        self.heard.append(message)

    async def dispatched(self) -> None:
        """The job is in the queue."""
        await until(lambda: self.queue().llen(QUEUE) > 0)

    def queue(self) -> Any:
        path = self.client.connection_pool.connection_kwargs["path"]
        return redis.Redis(unix_socket_path=path, db=1)

    def record(self) -> dict[bytes, bytes]:
        fields: Any = self.client.hgetall(keys.tool("call_1"))
        return dict(fields)


async def until(condition: Callable[[], bool]) -> None:
    """Polls Redis, which has no way to call back. Raises `TimeoutError`."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.fixture
async def bench(redis_url: str, client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    monkeypatch.setattr(tool_dispatch, "WORKER_CHECK_S", 0.02)
    settings = RealtimeSettings(redis_url=redis_url, node_id="n", tool_queue_wait_s=20)
    connection = connect(redis_url)
    publisher = Publisher(connection)
    flushing = asyncio.create_task(publisher.run())
    dispatch = ToolDispatch(connection, publisher, settings)
    yield Bench(dispatch, client, lambda: publisher.drain(5))
    flushing.cancel()
    await connection.aclose()


def result(attempt: int = 1, output: str = "4", error: str = "") -> ToolResult:
    return ToolResult("call_1", attempt, output, error, 1.0, 2.0)


async def test_the_result_of_the_worker_comes_back(bench: Bench) -> None:
    running = bench.call()
    await bench.dispatched()
    bench.dispatch.on_message(ToolProgress("call_1", 1, 0.5))
    bench.dispatch.on_message(result())
    bench.dispatch.on_message(result(output="late and ignored"))
    assert (await running).output == "4"
    assert bench.heard == [ToolProgress("call_1", 1, 0.5), result()]
    await bench.flush()
    assert bench.record()[b"name"] == b"calculator"


async def test_messages_of_calls_nobody_waits_for_are_ignored(bench: Bench) -> None:
    bench.dispatch.on_message(result())
    bench.dispatch.on_message(ToolStarted("call_9", 1, "w"))
    running = bench.call()
    await bench.dispatched()
    assert not running.done()
    running.cancel()


async def test_a_repeatable_call_is_sent_again_when_its_worker_is_gone(bench: Bench) -> None:
    running = bench.call()
    await bench.dispatched()
    bench.dispatch.on_message(ToolStarted("call_1", 1, "gone"))
    await until(lambda: bench.record().get(b"attempt_sent") == b"2")
    bench.dispatch.on_message(ToolProgress("call_1", 1, 0.9))
    bench.dispatch.on_message(ToolPartial("call_1", 1, 0, "of the lost attempt"))
    bench.dispatch.on_message(result(attempt=2))
    assert (await running).attempt == 2
    assert bench.heard == [ToolStarted("call_1", 1, "gone"), result(attempt=2)]


async def test_progress_only_grows_and_stops_at_the_result(bench: Bench) -> None:
    running = bench.call()
    await bench.dispatched()
    for progress in (0.2, 0.2, 0.1, float("nan"), 0.3):
        bench.dispatch.on_message(ToolProgress("call_1", 1, progress))
    bench.dispatch.on_message(result())
    bench.dispatch.on_message(ToolProgress("call_1", 1, 0.4))
    await running
    assert [message.progress for message in bench.heard if isinstance(message, ToolProgress)] == [0.2, 0.3]


async def test_a_result_is_heard_before_anybody_who_waits_for_it_goes_on(bench: Bench) -> None:
    running = bench.call()
    await bench.dispatched()
    bench.dispatch.on_message(result())
    assert bench.heard == [result()]
    assert not running.done()
    await running


async def test_any_other_call_fails_when_its_worker_is_gone(bench: Bench) -> None:
    running = bench.call(ONCE_ONLY)
    await bench.dispatched()
    bench.dispatch.on_message(ToolStarted("call_1", 1, "gone"))
    assert "lost" in (await running).error


async def test_a_living_worker_may_take_its_time(bench: Bench) -> None:
    bench.client.set(keys.worker("alive"), "1")
    running = bench.call(ONCE_ONLY)
    await bench.dispatched()
    bench.dispatch.on_message(ToolStarted("call_1", 1, "alive"))
    await asyncio.wait({running}, timeout=0.2)
    assert not running.done()
    bench.dispatch.on_message(result())
    assert (await running).output == "4"


async def test_a_hung_tool_fails_at_its_deadline(bench: Bench) -> None:
    bench.dispatch._settings.tool_queue_wait_s = 0.05
    answer = await bench.call(replace(CALCULATOR, time_limit_s=0.05))
    assert "in time" in answer.error


async def test_cancelling_tells_the_worker(bench: Bench) -> None:
    running = bench.call()
    await bench.dispatched()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await bench.flush()
    assert bench.record()[b"cancel"] == b"1"
    bench.dispatch.on_message(result())
