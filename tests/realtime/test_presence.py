from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import redis.asyncio

from launch.child_process import ChildProcess
from launch.data_folder import DataFolder
from launch.embedded_redis import embedded_redis, embedded_url
from realtime import keys
from realtime.presence import GRACE_S, Absences, announce

LIMIT_S = 30.0


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[redis.asyncio.Redis]:
    folder = DataFolder(tmp_path)
    folder.lock()
    server = ChildProcess(embedded_redis(folder), lambda name, line: None)
    living = asyncio.create_task(server.live(LIMIT_S))
    await asyncio.wait_for(server.ever_ready.wait(), LIMIT_S)
    async with redis.asyncio.Redis.from_url(embedded_url(folder)) as client:
        yield client
    await server.stop(LIMIT_S)
    await living
    folder.unlock()


@pytest.fixture
def clock() -> list[float]:
    return [0.0]


async def test_a_web_process_is_dead_after_a_long_silence_only(client: redis.asyncio.Redis, clock: list[float]) -> None:
    absences = Absences(client, lambda: clock[0])
    await client.set(keys.web("web-alive"), b"")
    webs = {"web-alive", "web-silent"}
    assert await absences.dead(webs) == set()
    clock[0] = GRACE_S / 2
    assert await absences.dead(webs) == set()
    clock[0] = GRACE_S
    assert await absences.dead(webs) == {"web-silent"}


async def test_a_web_process_that_speaks_again_starts_anew(client: redis.asyncio.Redis, clock: list[float]) -> None:
    absences = Absences(client, lambda: clock[0])
    assert await absences.dead({"web-1"}) == set()
    speaking = asyncio.create_task(announce(client, "web-1"))
    async with asyncio.timeout(LIMIT_S):
        while not await client.exists(keys.web("web-1")):  # noqa: ASYNC110  (in Redis)
            await asyncio.sleep(0.01)
    speaking.cancel()
    clock[0] = GRACE_S
    assert await absences.dead({"web-1"}) == set()
    await client.delete(keys.web("web-1"))
    assert await absences.dead({"web-1"}) == set()


async def test_nobody_dies_while_redis_is_away(tmp_path: Path, clock: list[float]) -> None:
    async with redis.asyncio.Redis.from_url(f"unix://{tmp_path}/nothing.sock") as nobody:
        absences = Absences(nobody, lambda: clock[0])
        for moment in (0.0, GRACE_S, 2 * GRACE_S):
            clock[0] = moment
            assert await absences.dead({"web-1"}) == set()
