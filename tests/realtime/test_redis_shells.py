"""Inbox, outbox, event log, store and publisher against a real Valkey."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import redis
import redis.asyncio

from launch.embedded_redis import redis_command
from realtime import event_log, inbox, registry, store, turn_log
from realtime.messages import Delivery, Detach, InboxMessage, TurnRecord
from realtime.outbox import OutboxReader, add_deliveries
from realtime.publisher import Publisher
from realtime.redis_connection import connect


@pytest.fixture
async def shell(redis_url: str, client: redis.Redis) -> AsyncIterator[redis.asyncio.Redis]:
    """An async connection to the emptied database."""
    connection = connect(redis_url)
    yield connection
    await connection.aclose()


async def test_messages_posted_before_the_node_exists_are_read_once(shell: redis.asyncio.Redis) -> None:
    await inbox.post(shell, "n", Detach("s", "c1"))
    await inbox.post(shell, "n", Detach("s", "c2"))
    reader = inbox.Inbox(shell, "n")
    messages = await read(reader, 2)
    assert [message for _, message in messages] == [Detach("s", "c1"), Detach("s", "c2")]
    assert await reader.read(block_ms=10) == []


async def test_a_restarted_node_reads_what_was_not_acknowledged(shell: redis.asyncio.Redis) -> None:
    for name in ("c1", "c2"):
        await inbox.post(shell, "n", Detach("s", name))
    first = inbox.Inbox(shell, "n")
    (done, _), _ = await read(first, 2)
    async with shell.pipeline() as pipeline:
        first.acknowledge(pipeline, [done])
        await pipeline.execute()
    assert [message for _, message in await read(inbox.Inbox(shell, "n"), 1)] == [Detach("s", "c2")]


async def test_an_undecodable_entry_is_dropped_and_does_not_come_back(shell: redis.asyncio.Redis) -> None:
    await shell.xadd("ms:node:n:inbox", {"m": "{not json"})
    await shell.xadd("ms:node:n:inbox", {"other": "x"})
    await inbox.post(shell, "n", Detach("s", "c"))
    assert len(await read(inbox.Inbox(shell, "n"), 1)) == 1
    assert await shell.xlen("ms:node:n:inbox") == 1


async def test_the_outbox_keeps_the_order_of_each_connection(shell: redis.asyncio.Redis) -> None:
    reader = OutboxReader(shell, "w")
    for number in range(3):
        async with shell.pipeline() as pipeline:
            add_deliveries(pipeline, "w", [Delivery("c", msgspec.Raw(b"%d" % number), number)])
            await pipeline.execute()
    deliveries: list[Delivery] = []
    while len(deliveries) < 3:
        deliveries += await reader.read(block_ms=100)
    assert [delivery.seq for delivery in deliveries] == [0, 1, 2]
    assert await shell.ttl("ms:web:w:out") > 0


async def test_the_event_log_says_when_events_are_gone(shell: redis.asyncio.Redis) -> None:
    async with shell.pipeline() as pipeline:
        event_log.append(pipeline, "s", [(seq, b"e%d" % seq) for seq in range(5, 9)], 100, 60)
        await pipeline.execute()
    assert await event_log.read_after(shell, "s", 6) == [b"e7", b"e8"]
    assert await event_log.read_after(shell, "s", 8) == []
    assert await event_log.read_after(shell, "s", 2) is None


async def test_a_session_comes_back_as_it_was_saved(shell: redis.asyncio.Redis) -> None:
    record = store.SessionRecord("me", "n", "model", "{}", 12, 3, "resp_1")
    async with shell.pipeline() as pipeline:
        store.save_session(pipeline, "s", record, 60)
        for name in ("a", "b", "c"):
            store.save_item(pipeline, "s", name, name.encode())
        store.save_order(pipeline, "s", ["c", "a", "b"])
        store.delete_item(pipeline, "s", "a")
        await pipeline.execute()
    assert await store.load_session(shell, "s") == record
    assert await store.load_items(shell, "s") == [b"c", b"b"]
    assert await store.load_session(shell, "other") is None
    assert await store.load_items(shell, "other") == []


async def test_only_nodes_with_a_heartbeat_live(shell: redis.asyncio.Redis) -> None:
    busy = registry.NodeInfo("busy", "m", "e", "ready", 100, sessions=9, at=time.time())
    free = registry.NodeInfo("free", "m", "e", "ready", 100, sessions=1, at=time.time())
    stale = registry.NodeInfo("stale", "m", "e", "ready", 100, sessions=0, at=time.time() - 60)
    for info in (busy, free, stale):
        await registry.heartbeat(shell, info, b"")
    assert [info.node for info in await registry.live_nodes(shell)] == ["free", "busy"]
    await registry.remove(shell, "free")
    assert [info.node for info in await registry.live_nodes(shell)] == ["busy"]


async def test_the_turn_log_can_be_followed(shell: redis.asyncio.Redis) -> None:
    record = TurnRecord("t1", "s", "n", "off", "completed", 0, 1, 2, 3, 10, 0, 5, 0, 10, 0, [("tool", 1, 2)])
    assert await turn_log.recent_turns(shell, 10) == (b"0", [])
    async with shell.pipeline() as pipeline:
        turn_log.add_turn(pipeline, record)
        await pipeline.execute()
    cursor, turns = await turn_log.recent_turns(shell, 10)
    assert turns == [record]
    assert await turn_log.next_turns(shell, cursor, block_ms=10) == (cursor, [])


async def test_writes_and_deliveries_made_together_arrive_together(shell: redis.asyncio.Redis) -> None:
    publisher = Publisher(shell)
    running = asyncio.create_task(publisher.run())
    publisher.write(lambda pipeline: pipeline.set("a", "1"))
    publisher.deliver("w", "c", b"{}", 1)
    await publisher.drain(5)
    assert await shell.get("a") == b"1"
    assert len(await OutboxReader(shell, "w").read(block_ms=100)) == 1
    running.cancel()


async def test_nothing_queued_is_lost_while_redis_is_away() -> None:
    with tempfile.TemporaryDirectory(prefix="ms-") as name:
        socket = Path(name) / "redis.sock"
        server = start(Path(name), socket)
        connection = connect(f"unix://{socket}?db=0")
        publisher = Publisher(connection)
        running = asyncio.create_task(publisher.run())
        publisher.write(lambda pipeline: pipeline.rpush("list", "before"))
        await publisher.drain(5)
        os.kill(server.pid, signal.SIGTERM)  # a clean stop: what was written is kept
        server.communicate(timeout=10)
        publisher.write(lambda pipeline: pipeline.rpush("list", "during"))
        publisher.write(lambda pipeline: pipeline.rpush("list", "after"))
        with pytest.raises(TimeoutError):
            await publisher.drain(0.3)
        server = start(Path(name), socket)
        try:
            await publisher.drain(10)
            assert await connection.lrange("list", 0, -1) == [b"before", b"during", b"after"]
        finally:
            running.cancel()
            await connection.aclose()
            server.kill()
            server.communicate(timeout=10)


def start(folder: Path, socket: Path) -> subprocess.Popen[str]:
    server = subprocess.Popen(redis_command(folder, socket), stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    for line in server.stdout:
        if "Ready to accept connections" in line:
            break
    return server


async def read(reader: inbox.Inbox, count: int) -> list[tuple[bytes, InboxMessage]]:
    """`count` messages; the first reads of a new reader make the group and look for pending ones."""
    messages: list[tuple[bytes, InboxMessage]] = []
    for _ in range(10):
        messages += await reader.read(block_ms=50)
        if len(messages) >= count:
            return messages
    raise AssertionError(f"only {len(messages)} messages")
