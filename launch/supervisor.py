"""Keeps child processes running: ordered start, restarts with back-off, ordered stop, and never an orphan.

Each child leads its own process group. When it exits, for whatever reason, what is left of its group is killed before
anything else happens; when this process is killed, the kernel kills the children (`launch.child`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress

from launch.child_process import ChildProcess, ChildSpec, Say

FIRST_DELAY_S = 0.2
LAST_DELAY_S = 5.0
HEALTHY_AFTER_S = 30.0
MAX_FAILED_STARTS = 3


class StartFailed(Exception):
    """A child never became ready."""


class Supervisor:
    """Children start together except where `after` says otherwise, and stop one by one in reverse order.

    `say(name, line)` is called for every line of a child's output and for what happens to the child.
    """

    def __init__(
        self, specs: list[ChildSpec], say: Say, *, start_timeout_s: float = 900.0, stop_grace_s: float = 10.0
    ) -> None:
        self._children = {spec.name: ChildProcess(spec, say) for spec in specs}
        self._say = say
        self._start_timeout_s = start_timeout_s
        self._stop_grace_s = stop_grace_s
        self._stopping = asyncio.Event()
        self._failure: StartFailed | None = None

    async def run(self, on_ready: Callable[[], None]) -> None:
        """Returns after `stop()`, when every process is gone. Calls `on_ready` once, when all children are ready.

        Raises `StartFailed` when a child ends three times, or cannot be executed, without ever having been ready.
        """
        async with asyncio.TaskGroup() as tasks:
            for child in self._children.values():
                tasks.create_task(self._keep(child))
            tasks.create_task(self._announce(on_ready))
            tasks.create_task(self._stop_in_order())
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """SIGTERM to one child after the other, SIGKILL to those that do not obey."""
        self._stopping.set()

    def kill(self) -> None:
        """The impatient way: SIGKILL to everything at once."""
        self._stopping.set()
        for child in self._children.values():
            child.kill()

    def ready_line(self, name: str) -> str:
        """The line with which a child last said that it is ready."""
        return self._children[name].ready_line

    async def _announce(self, on_ready: Callable[[], None]) -> None:
        if await self._all_ready(self._children):
            on_ready()

    async def _stop_in_order(self) -> None:
        await self._stopping.wait()
        for child in reversed(self._children.values()):
            await child.stop(self._stop_grace_s)

    async def _keep(self, child: ChildProcess) -> None:
        try:
            if await self._all_ready(child.spec.after):
                await self._live_again_and_again(child)
        except (StartFailed, OSError) as error:
            self._failure = StartFailed(str(error))
            self.stop()

    async def _live_again_and_again(self, child: ChildProcess) -> None:
        clock = asyncio.get_running_loop().time
        delay, failed_starts = FIRST_DELAY_S, 0
        while not self._stopping.is_set():
            started = clock()
            code = await child.live(self._start_timeout_s)
            if self._stopping.is_set():
                return
            failed_starts = 0 if child.ever_ready.is_set() else failed_starts + 1
            if failed_starts == MAX_FAILED_STARTS:
                raise StartFailed(f"{child.spec.name} does not start (exit code {code}); its last lines say why")
            if clock() - started >= HEALTHY_AFTER_S:
                delay = FIRST_DELAY_S
            self._say(child.spec.name, f"ended with exit code {code}; starting it again in {delay:g} s")
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), delay)
            delay = min(delay * 2, LAST_DELAY_S)

    async def _all_ready(self, names: Iterable[str]) -> bool:
        """True when all of them have been ready; False when the supervisor stops before that."""
        stop = asyncio.create_task(self._stopping.wait())
        try:
            for name in names:
                ready = asyncio.create_task(self._children[name].ever_ready.wait())
                await asyncio.wait([stop, ready], return_when=asyncio.FIRST_COMPLETED)
                ready.cancel()
            return not self._stopping.is_set()
        finally:
            stop.cancel()
