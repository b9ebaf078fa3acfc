"""One supervised program over all its lives: spawn, relay output, notice readiness, end with its whole group."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from launch.child import die_with_parent
from launch.lines import Lines

READY = re.compile(r"READY\b")
READ_BYTES = 65536
REDRAW_INTERVAL_S = 1.0
LAST_OUTPUT_S = 2.0

Say = Callable[[str, str], None]


@dataclass
class ChildSpec:
    """A program to keep running. It is ready when a line of its output matches `ready`.

    `after` names the programs that must have been ready before this one first starts. Lines that match `hidden` are not
    relayed. `command` may be changed between two lives.
    """

    name: str
    command: list[str]
    env: dict[str, str] = field(default_factory=dict)
    after: tuple[str, ...] = ()
    ready: re.Pattern[str] = READY
    hidden: re.Pattern[str] | None = None
    pass_fds: tuple[int, ...] = ()


class ChildProcess:
    """`say(name, line)` gets every line of output. `ever_ready` is set by the first life that becomes ready."""

    def __init__(self, spec: ChildSpec, say: Say) -> None:
        self.spec = spec
        self.ever_ready = asyncio.Event()
        self.ready_line = ""
        self._say = partial(say, spec.name)
        self._ready = asyncio.Event()
        self._process: asyncio.subprocess.Process | None = None
        self._stopped = False
        self._gone = asyncio.Event()
        self._gone.set()

    async def live(self, start_timeout_s: float) -> int:
        """Runs the program once; the exit code comes when nothing of its process group is left.

        Killed when it is not ready within `start_timeout_s`. Raises `OSError` when it cannot be started.
        """
        self._gone.clear()
        self._ready.clear()
        reader, writing_end, transport = await _output_pipe()
        try:
            self._process = process = await self._spawn(writing_end)
            output = asyncio.create_task(self._relay(reader))
            try:
                return await self._wait(process, start_timeout_s)
            finally:
                self.kill()
                await asyncio.wait([output], timeout=LAST_OUTPUT_S)
                output.cancel()
        finally:
            transport.close()
            self._process = None
            self._gone.set()

    async def stop(self, grace_s: float) -> None:
        """SIGTERM, and SIGKILL for the whole group after `grace_s`. No further life begins."""
        self._stopped = True
        if self._process is not None:
            with suppress(ProcessLookupError):
                # Not `terminate()`, which would reap a process that has just ended behind asyncio's back.
                os.kill(self._process.pid, signal.SIGTERM)
        try:
            await asyncio.wait_for(self._gone.wait(), grace_s)
        except TimeoutError:
            self._say(f"did not stop within {grace_s:g} s; killing it")
            self.kill()
            await self._gone.wait()

    def kill(self) -> None:
        """SIGKILL to the process and to everything in its group."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def _spawn(self, output: int) -> asyncio.subprocess.Process:
        try:
            return await asyncio.create_subprocess_exec(
                *self.spec.command,
                # Everything is handed on: PATH, CUDA_VISIBLE_DEVICES, HF_TOKEN and the settings of every package.
                env={**os.environ, "PYTHONUNBUFFERED": "1", **self.spec.env},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                pass_fds=self.spec.pass_fds,
                # Safe although it runs between fork and exec: two system calls, nothing imported or locked.
                preexec_fn=partial(die_with_parent, os.getpid()),
            )
        finally:
            os.close(output)

    async def _wait(self, process: asyncio.subprocess.Process, start_timeout_s: float) -> int:
        if self._stopped:
            self.kill()
        exited = asyncio.create_task(process.wait())
        ready = asyncio.create_task(self._ready.wait())
        try:
            await asyncio.wait([exited, ready], timeout=start_timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if not exited.done() and not ready.done():
                self._say(f"not ready after {start_timeout_s:g} s; killing it")
                self.kill()
            return await exited
        finally:
            ready.cancel()

    async def _relay(self, output: asyncio.StreamReader) -> None:
        lines, clock = Lines(), asyncio.get_running_loop().time
        redrawn_at = 0.0
        while True:
            data = await output.read(READ_BYTES)
            for line, redraw in lines.feed(data) if data else lines.end():
                if redraw and clock() - redrawn_at < REDRAW_INTERVAL_S:
                    continue
                redrawn_at = clock() if redraw else redrawn_at
                self._note_readiness(line)
                if self.spec.hidden is None or not self.spec.hidden.search(line):
                    self._say(line)
            if not data:
                return

    def _note_readiness(self, line: str) -> None:
        if not self._ready.is_set() and self.spec.ready.search(line):
            self.ready_line = line
            self._ready.set()
            self.ever_ready.set()


async def _output_pipe() -> tuple[asyncio.StreamReader, int, asyncio.ReadTransport]:
    """Not asyncio's own pipe, with which `Process.wait` would wait for grandchildren that hold it open."""
    reading_end, writing_end = os.pipe()
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(reading_end, "rb", buffering=0)
    )
    return reader, writing_end, transport
