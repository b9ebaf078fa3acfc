"""A worker process for tests."""

from __future__ import annotations

import subprocess
import sys


class Worker:
    """A real `python -m workers`, ready to take jobs."""

    def __init__(self, redis_url: str) -> None:
        environment = {"MIDSTREAM_REDIS_URL": redis_url, "MIDSTREAM_WORKER_CONCURRENCY": "2", "PATH": ""}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "workers"], env=environment, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        if not any(line.startswith("READY") for line in self.process.stdout):
            raise AssertionError("the worker did not start")

    def end(self) -> None:
        self.process.terminate()
        self.process.communicate(timeout=90)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=90)
