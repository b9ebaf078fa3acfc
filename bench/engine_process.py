"""A process that is measured: it can be stopped while others are, and its log says why it failed."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from launch.child import die_with_parent

_LOG_LINES = 5


class EngineFailed(Exception):
    """It is not set up, did not start, ended or did not answer in time."""


class EngineProcess:
    """A child with its own process group and a log file."""

    def __init__(self, command: Sequence[str | Path], environment: Mapping[str, str]) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (open as long as the process)
        parent = os.getpid()
        self._child = subprocess.Popen(
            command,
            bufsize=0,
            cwd=Path(__file__).parents[1],
            env={**os.environ, "HF_HUB_OFFLINE": "1", **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
            preexec_fn=lambda: die_with_parent(parent),
        )

    @property
    def pid(self) -> int:
        return self._child.pid

    def processor_s(self) -> float:
        """What it and its children have used of the processors."""
        total, process = 0.0, psutil.Process(self.pid)
        for one in (process, *process.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                total += sum(one.cpu_times()[:2])
        return total

    def pause(self) -> None:
        """None of its threads runs until `go_on`."""
        self._signal(signal.SIGSTOP)
        # A signal may be late. Neither status is taken: the end of a process is for `Popen` to see.
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def write_line(self, line: str) -> None:
        """Raises `EngineFailed`."""
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(line.encode() + b"\n")
        except OSError as error:
            raise self.failure("ended") from error

    def read_line(self, limit_s: float) -> str:
        """Raises `EngineFailed`."""
        assert self._child.stdout is not None
        line, deadline = b"", time.monotonic() + limit_s
        while not line.endswith(b"\n"):
            readable, _, _ = select.select([self._child.stdout], [], [], max(deadline - time.monotonic(), 0))
            if not readable:
                raise self.failure(f"said nothing for {limit_s:.0f} s")
            data = os.read(self._child.stdout.fileno(), 1 << 16)
            if not data:
                raise self.failure("ended")
            line += data
        return line.decode()

    def wait_for(self, text: str, limit_s: float) -> None:
        """Until its log has `text`. Raises `EngineFailed`."""
        deadline = time.monotonic() + limit_s
        while text not in self._read_log():
            if self._child.poll() is not None or time.monotonic() > deadline:
                raise self.failure("did not start")
            time.sleep(0.05)

    def failure(self, what: str) -> EngineFailed:
        """`what` happened, with the end of its log."""
        return EngineFailed("\n".join([what, *self._read_log().strip().splitlines()[-_LOG_LINES:]]))

    def end(self) -> None:
        self._signal(signal.SIGKILL)
        self._child.communicate()
        self._log.close()

    def _read_log(self) -> str:
        # Not by seeking: the child shares this file's position.
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), size, 0).decode(errors="replace")

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._child.pid, number)


class Meter:
    """Tells which share of the processors went to others than `process` and this one since it was made."""

    def __init__(self, process: EngineProcess) -> None:
        self._process = process
        self._started, self._used = time.perf_counter(), self._used_by_others()

    def others(self) -> float:
        """0 to 1."""
        had = (time.perf_counter() - self._started) * (psutil.cpu_count() or 1)
        return max(self._used_by_others() - self._used, 0.0) / had

    def _used_by_others(self) -> float:
        machine = psutil.cpu_times()
        idle = machine.idle + getattr(machine, "iowait", 0.0)
        # What follows the first eight on Linux (guests) is counted among these already.
        return float(sum(machine[:8]) - idle) - self._process.processor_s() - time.process_time()
