from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import psutil
import pytest

from launch.child_process import ChildSpec
from launch.supervisor import StartFailed, Supervisor

LIMIT_S = 30

SERVER = """
import signal, sys, os
def stop(*_):
    print("stopped", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
print("READY", os.getpid(), flush=True)
while True:
    signal.pause()
"""
STUBBORN = SERVER.replace("sys.exit(0)", "return")
# A child with a grandchild that ignores SIGTERM.
PARENT = """
import subprocess, sys, time
code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
grandchild = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
grandchild.stdout.readline()
print("READY", grandchild.pid, flush=True)
time.sleep(600)
"""


def program(name: str, code: str, *arguments: str, after: tuple[str, ...] = ()) -> ChildSpec:
    return ChildSpec(name, [sys.executable, "-c", code, *arguments], after=after)


class Log:
    """What the supervisor said, and a way to wait for it."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []
        self._more = asyncio.Event()

    def __call__(self, name: str, line: str) -> None:
        self.lines.append((name, line))
        self._more.set()

    async def wait_for(self, matches: Callable[[str, str], bool], count: int = 1) -> str:
        async with asyncio.timeout(LIMIT_S):
            while True:
                found = [line for name, line in self.lines if matches(name, line)]
                if len(found) >= count:
                    return found[count - 1]
                self._more.clear()
                await self._more.wait()

    async def ready_pid(self, name: str, count: int = 1) -> int:
        line = await self.wait_for(lambda who, text: who == name and text.startswith("READY"), count)
        return int(line.split()[1])


@asynccontextmanager
async def running(supervisor: Supervisor) -> AsyncIterator[None]:
    """The supervisor with all children ready; stopped at the end."""
    ready = asyncio.Event()
    task = asyncio.create_task(supervisor.run(ready.set))
    try:
        async with asyncio.timeout(LIMIT_S):
            await ready.wait()
        yield
    finally:
        supervisor.stop()
        async with asyncio.timeout(LIMIT_S):
            await task


def is_running(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False


async def gone(pid: int) -> None:
    async with asyncio.timeout(LIMIT_S):
        while is_running(pid):  # noqa: ASYNC110  (other processes set no events)
            await asyncio.sleep(0.02)


async def test_a_child_starts_only_when_those_before_it_are_ready() -> None:
    log = Log()
    slow = "import time; time.sleep(0.3);" + SERVER
    async with running(Supervisor([program("first", slow), program("second", SERVER, after=("first",))], log)):
        assert [name for name, line in log.lines if line.startswith("READY")] == ["first", "second"]


async def test_children_stop_in_reverse_order() -> None:
    log = Log()
    async with running(Supervisor([program(name, SERVER) for name in ("a", "b", "c")], log)):
        pass
    assert [name for name, line in log.lines if line == "stopped"] == ["c", "b", "a"]


async def test_a_child_that_dies_is_started_again() -> None:
    log = Log()
    async with running(Supervisor([program("a", SERVER)], log)):
        first = await log.ready_pid("a")
        os.kill(first, signal.SIGKILL)
        second = await log.ready_pid("a", count=2)
        assert second != first
        assert ("a", "ended with exit code -9; starting it again in 0.2 s") in log.lines


async def test_the_pause_before_a_restart_doubles() -> None:
    log = Log()
    async with running(Supervisor([program("a", "print('READY', flush=True)")], log)):
        await log.wait_for(lambda _, line: line.endswith("in 0.8 s"))
    pauses = [line.split()[-2] for _, line in log.lines if "starting it again" in line]
    assert pauses[:3] == ["0.2", "0.4", "0.8"]


async def test_a_restart_uses_a_changed_command() -> None:
    log = Log()
    spec = program("a", "import sys; print('READY', sys.argv[1], flush=True); sys.stdin.read(); input()", "1")
    async with running(Supervisor([spec], log)):
        spec.command = [*spec.command[:-1], "2"]
        assert await log.ready_pid("a", count=2) == 2


async def test_the_rest_of_a_dead_childs_group_is_killed() -> None:
    log = Log()
    async with running(Supervisor([program("a", PARENT)], log)):
        grandchild = await log.ready_pid("a")
        os.kill(psutil.Process(grandchild).ppid(), signal.SIGKILL)
        await gone(grandchild)


async def test_stopping_leaves_no_grandchild() -> None:
    log = Log()
    async with running(Supervisor([program("a", PARENT)], log)):
        grandchild = await log.ready_pid("a")
    await gone(grandchild)


async def test_a_child_that_ignores_sigterm_is_killed_after_the_grace() -> None:
    log = Log()
    async with running(Supervisor([program("a", STUBBORN)], log, stop_grace_s=0.3)):
        pid = await log.ready_pid("a")
    assert not is_running(pid)
    assert ("a", "did not stop within 0.3 s; killing it") in log.lines


async def test_kill_does_not_wait_for_the_grace() -> None:
    log = Log()
    supervisor = Supervisor([program("a", STUBBORN)], log, stop_grace_s=600)
    async with running(supervisor):
        pid = await log.ready_pid("a")
        supervisor.stop()
        await log.wait_for(lambda _, line: line == "stopped")
        supervisor.kill()
    assert not is_running(pid)


async def test_a_child_that_never_starts_stops_everything() -> None:
    log = Log()
    supervisor = Supervisor([program("good", SERVER), program("bad", "raise SystemExit(3)")], log)
    with pytest.raises(StartFailed, match=r"bad does not start \(exit code 3\)"):
        async with asyncio.timeout(LIMIT_S):
            await supervisor.run(lambda: None)
    assert not is_running(await log.ready_pid("good"))


async def test_a_command_that_does_not_exist_is_a_failed_start(tmp_path: Path) -> None:
    supervisor = Supervisor([ChildSpec("a", [str(tmp_path / "missing")])], Log())
    with pytest.raises(StartFailed, match="No such file"):
        async with asyncio.timeout(LIMIT_S):
            await supervisor.run(lambda: None)


async def test_a_child_that_is_never_ready_is_killed() -> None:
    log = Log()
    supervisor = Supervisor([program("a", "import time; time.sleep(600)")], log, start_timeout_s=0.2)
    with pytest.raises(StartFailed, match="a does not start"):
        async with asyncio.timeout(LIMIT_S):
            await supervisor.run(lambda: None)
    assert ("a", "not ready after 0.2 s; killing it") in log.lines


async def test_stop_during_the_start_ends_everything() -> None:
    log = Log()
    supervisor = Supervisor([program("a", "import time; print('up', flush=True); time.sleep(600)")], log)
    task = asyncio.create_task(supervisor.run(lambda: None))
    await log.wait_for(lambda _, line: line == "up")
    supervisor.stop()
    async with asyncio.timeout(LIMIT_S):
        await task


async def test_a_killed_supervisor_leaves_no_orphan() -> None:
    code = f"""
import asyncio, sys
from launch.child_process import ChildSpec
from launch.supervisor import Supervisor
specs = [ChildSpec("a", [sys.executable, "-c", {SERVER!r}])]
asyncio.run(Supervisor(specs, lambda name, line: print(line, flush=True)).run(lambda: None))
"""
    supervisor = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    assert supervisor.stdout is not None
    async with asyncio.timeout(LIMIT_S):
        child = int((await supervisor.stdout.readline()).split()[1])
        supervisor.kill()
        await supervisor.wait()
    await gone(child)
