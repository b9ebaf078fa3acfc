from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from launch.embedded_redis import redis_command
from tests.workers.worker_process import Worker

LIMIT_S = 30


@pytest.fixture
def data() -> Iterator[Path]:
    """A data folder whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="ms-") as name:
        yield Path(name)


@pytest.fixture
def redis_url(data: Path) -> Iterator[str]:
    server = subprocess.Popen(redis_command(data, data / "outside.sock"), stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    assert any("Ready to accept" in line for line in server.stdout)
    yield f"unix://{data / 'outside.sock'}"
    server.kill()
    server.communicate(timeout=LIMIT_S)


@pytest.fixture
def worker(redis_url: str) -> Iterator[Worker]:
    worker = Worker(redis_url)
    yield worker
    worker.end()
