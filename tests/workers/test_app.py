"""The whole way through a real worker: queue, pool process, inbox."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest
import redis

from realtime import keys
from realtime.inbox import FIELD, stream_batches
from realtime.messages import InboxMessage, ToolJob, ToolProgress, ToolResult, ToolStarted, decode_inbox
from realtime.tool_queue import ToolQueue
from tests.workers.worker_process import Worker
from workers.call_record import CallRecord, Holder

NODE = "node-1"
LIMIT_S = 30
WAIT_A_MINUTE = '{"seconds": 60}'


@pytest.fixture(scope="module")
def worker(redis_url: str) -> Iterator[Worker]:
    """One that no test stops or kills."""
    worker = Worker(redis_url)
    yield worker
    worker.end()


@pytest.fixture
def queue(redis_url: str) -> Iterator[ToolQueue]:
    queue = ToolQueue(redis_url)
    yield queue
    queue.close()


def wait_job(call: str) -> ToolJob:
    return ToolJob(call, 1, NODE, "wait", WAIT_A_MINUTE, time.time())


class InboxReader:
    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._last: bytes | str = "0"

    def next(self, kind: type[InboxMessage]) -> Any:
        """The next message of a kind; others are passed over."""
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            reply: Any = self._client.xread({keys.node_inbox(NODE): self._last}, count=1, block=1000)
            for _, entries in stream_batches(reply):
                ((self._last, fields),) = entries
                message = decode_inbox(fields[FIELD])
                if isinstance(message, kind):
                    return message
        raise AssertionError(f"no {kind.__name__} came")


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_running(process: psutil.Process) -> bool:
    return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)


async def test_a_killed_worker_leaves_no_process_and_is_noticed(
    client: redis.Redis, queue: ToolQueue, redis_url: str
) -> None:
    worker = Worker(redis_url)
    await queue.send(wait_job("c4"))
    started = InboxReader(client).next(ToolStarted)
    pool = psutil.Process(worker.process.pid).children(recursive=True)
    assert client.exists(keys.worker(started.worker))
    worker.kill()
    eventually(lambda: not any(is_running(process) for process in pool))
    eventually(lambda: not client.exists(keys.worker(started.worker)))


async def test_a_stopped_worker_gives_its_job_back(client: redis.Redis, queue: ToolQueue, redis_url: str) -> None:
    worker = Worker(redis_url)
    await queue.send(wait_job("c6"))
    inbox = InboxReader(client)
    name = inbox.next(ToolStarted).worker
    worker.end()
    assert not client.exists(keys.worker(name))
    successor = Worker(redis_url)
    try:
        assert inbox.next(ToolStarted).worker != name
        client.hset(keys.tool("c6"), "cancel", "1")
        assert inbox.next(ToolResult).error == "cancelled"
    finally:
        successor.end()


async def test_the_next_attempt_answers_after_a_lost_one(worker: Worker, client: redis.Redis, queue: ToolQueue) -> None:
    CallRecord(client, wait_job("c8")).claim(Holder("gone", 1), time.time())
    await queue.send(ToolJob("c8", 2, NODE, "wait", '{"seconds": 0}', time.time()))
    assert InboxReader(client).next(ToolResult).attempt == 2


async def test_a_job_comes_back_as_a_result(worker: Worker, client: redis.Redis, queue: ToolQueue) -> None:
    await queue.send(ToolJob("c1", 1, NODE, "calculator", '{"expression": "1234*5678"}', time.time()))
    inbox = InboxReader(client)
    assert inbox.next(ToolStarted).worker.endswith(f"-{worker.process.pid}")
    assert inbox.next(ToolResult).output == "7006652"


async def test_a_job_delivered_twice_runs_once(worker: Worker, client: redis.Redis, queue: ToolQueue) -> None:
    job = ToolJob("c2", 1, NODE, "wait", '{"seconds": 0.5}', time.time())
    await queue.send(job)
    await queue.send(job)
    inbox = InboxReader(client)
    assert inbox.next(ToolResult).output == "Waited 0.5 s."
    assert client.hget(keys.tool("c2"), "runs") == b"1"


async def test_a_wait_reports_progress_and_can_be_cancelled(
    worker: Worker, client: redis.Redis, queue: ToolQueue
) -> None:
    await queue.send(wait_job("c3"))
    inbox = InboxReader(client)
    assert inbox.next(ToolProgress).total == 60
    client.hset(keys.tool("c3"), "cancel", "1")
    assert inbox.next(ToolResult).error == "cancelled"


async def test_a_job_outlives_its_killed_pool_process(worker: Worker, client: redis.Redis, queue: ToolQueue) -> None:
    await queue.send(ToolJob("c5", 1, NODE, "wait", '{"seconds": 2}', time.time()))
    inbox = InboxReader(client)
    inbox.next(ToolStarted)
    pid: Any = client.hget(keys.tool("c5"), "pid")
    os.kill(int(pid), signal.SIGKILL)
    assert inbox.next(ToolStarted).attempt == 1
    assert inbox.next(ToolResult).output == "Waited 2 s."
    assert client.hget(keys.tool("c5"), "runs") == b"2"


async def test_garbage_in_the_queue_does_not_stop_the_worker(
    worker: Worker, client: redis.Redis, queue: ToolQueue
) -> None:
    queue._app.send_task("midstream.run_tool", kwargs={"call": 1}, queue="midstream-tools")
    queue._app.send_task("no.such.task", queue="midstream-tools")
    await queue.send(ToolJob("c7", 1, NODE, "calculator", '{"expression": "1+1"}', time.time()))
    assert InboxReader(client).next(ToolResult).output == "2"
