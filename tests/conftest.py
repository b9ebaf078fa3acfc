"""A real Valkey for the tests that need Redis."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import redis

from launch.embedded_redis import redis_command
from realtime.redis_connection import connect_sync

# How long an example takes says more of the machine than of the code.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    """A Valkey of the test module's own."""
    # Not pytest's tmp_path: a Unix socket's path has to be short.
    with tempfile.TemporaryDirectory(prefix="ms-") as name:
        folder = Path(name)
        command = redis_command(folder, folder / "redis.sock")
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert server.stdout is not None
        for line in server.stdout:
            if "Ready to accept connections" in line:
                break
        try:
            yield f"unix://{folder / 'redis.sock'}?db=0"
        finally:
            server.kill()
            server.communicate(timeout=10)


@pytest.fixture
def client(redis_url: str) -> Iterator[redis.Redis]:
    """An empty database; the broker's, next to it, is left alone."""
    with connect_sync(redis_url) as client:
        client.flushdb()
        yield client
