from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from launch.data_folder import DataFolder
from launch.embedded_redis import embedded_redis, embedded_url
from launch.supervisor import Supervisor
from realtime.redis_connection import connect_sync

LIMIT_S = 30


@pytest.fixture
def folder() -> Iterator[DataFolder]:
    with tempfile.TemporaryDirectory(prefix="ms-") as name:
        folder = DataFolder(Path(name))
        folder.lock()
        yield folder
        folder.unlock()


@asynccontextmanager
async def running(folder: DataFolder) -> AsyncIterator[list[str]]:
    lines: list[str] = []
    ready = asyncio.Event()
    supervisor = Supervisor([embedded_redis(folder)], lambda _, line: lines.append(line))
    task = asyncio.create_task(supervisor.run(ready.set))
    try:
        async with asyncio.timeout(LIMIT_S):
            await ready.wait()
        yield lines
    finally:
        supervisor.stop()
        async with asyncio.timeout(LIMIT_S):
            await task


async def test_data_outlives_a_restart(folder: DataFolder) -> None:
    for expected, value in ((None, "1"), (b"1", "2")):
        async with running(folder):
            with connect_sync(embedded_url(folder)) as client:
                assert client.get("kept") == expected
                client.set("kept", value)


async def test_it_is_durable_evicts_nothing_and_is_not_on_the_network(folder: DataFolder) -> None:
    async with running(folder):
        with connect_sync(embedded_url(folder)) as client:
            config: Any = client.config_get("*")
        assert config["appendonly"] == "yes"
        assert config["appendfsync"] == "everysec"
        assert config["maxmemory-policy"] == "noeviction"
        assert config["port"] == "0"


async def test_it_comes_back_with_its_data_after_a_kill(folder: DataFolder) -> None:
    async with running(folder) as lines:
        with connect_sync(embedded_url(folder)) as client:
            client.set("kept", "1")
            client.waitaof(1, 0, 5000)
            info: Any = client.info("server")
            os.kill(info["process_id"], signal.SIGKILL)
            async with asyncio.timeout(LIMIT_S):
                while sum("Ready to accept connections" in line for line in lines) < 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            assert client.get("kept") == b"1"
