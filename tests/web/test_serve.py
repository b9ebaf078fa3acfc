from __future__ import annotations

import asyncio
import os
import signal
import sys

import httpx

from tests.web.conftest import LIMIT_S, Node, Valkey


async def test_the_process_says_when_it_is_ready_and_ends_on_sigterm(valkey: Valkey, node: Node) -> None:
    environment = {**os.environ, "MIDSTREAM_REDIS_URL": valkey.url}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "web.serve", "--host", "127.0.0.1", "--port", "0",
        stdout=asyncio.subprocess.PIPE, env=environment,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        line = (await asyncio.wait_for(process.stdout.readline(), LIMIT_S)).decode()
        word, url = line.split()
        assert word == "READY"
        async with httpx.AsyncClient(base_url=url) as client:
            assert (await client.get("/readyz")).status_code == 200
            async with client.stream("GET", "/admin/events") as feed:
                assert feed.status_code == 200
                process.send_signal(signal.SIGTERM)
                assert await asyncio.wait_for(process.wait(), LIMIT_S) in (0, -signal.SIGTERM)
        assert await process.stdout.read() == b""
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
