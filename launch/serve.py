"""`midstream serve`: the whole server, or one part of it, in the foreground."""

from __future__ import annotations

import asyncio
import http.client
import signal
import socket
import time
import urllib.request
from urllib.parse import urlsplit

from rich.console import Console
from rich.text import Text

from engine.model.loader import ModelError, model_name
from engine.settings import EngineSettings
from launch.child_process import ChildSpec
from launch.children import Role, children, web_command
from launch.data_folder import DataFolder, DataFolderInUse
from launch.embedded_redis import embedded_redis, embedded_url
from launch.settings import LaunchSettings
from launch.supervisor import StartFailed, Supervisor

COLOURS = {"redis": "red", "engine": "magenta", "host": "blue", "worker": "yellow", "web": "green"}
READY_POLL_S = 0.1
HTTP_TIMEOUT_S = 2.0

console = Console(highlight=False, soft_wrap=True)


class CannotServe(Exception):
    """Says what is wrong and what to do."""


def serve(role: Role, settings: LaunchSettings) -> int:
    """Runs until Ctrl-C or SIGTERM. The exit code is 1 when the server cannot start."""
    folder = DataFolder(settings.data)
    try:
        redis = _prepare(role, settings, folder)
        asyncio.run(_Server(role, settings, folder, redis).run())
    except (CannotServe, DataFolderInUse, StartFailed, PermissionError) as error:
        console.print(Text(f"Cannot start: {error}", "bold red"))
        return 1
    finally:
        folder.unlock()
    return 0


def say(name: str, line: str) -> None:
    console.print(Text.assemble((f"{name:>9} │ ", COLOURS.get(name, "bold")), line))


def _prepare(role: Role, settings: LaunchSettings, folder: DataFolder) -> ChildSpec | None:
    """Locks the data folder where needed. With an embedded Redis, returns it and points `settings.redis_url` to it."""
    if role in (Role.ALL, Role.NODE):
        folder.lock()
    if role in (Role.ALL, Role.NODE):
        _check_model()
    if role in (Role.ALL, Role.WEB):
        _check_port(settings.host, settings.port)
    if settings.redis_url:
        return None
    if role is not Role.ALL:
        raise CannotServe(f"--role {role} is one part of a larger server: set MIDSTREAM_REDIS_URL to its Redis")
    settings.redis_url = embedded_url(folder)
    return embedded_redis(folder)


def _check_model() -> None:
    """Raises `CannotServe` for a model that is nowhere; whether it can be run only the engine finds out."""
    try:
        model_name(EngineSettings().model)
    except ModelError as error:
        raise CannotServe(f"MIDSTREAM_MODEL: {error}") from None


def _check_port(host: str, port: int) -> None:
    """Raises `CannotServe` when the address cannot be listened on, before anything slow has started."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise CannotServe(
            f"{host}:{port} is not free ({error.strerror}); choose another port with --port, or --port 0 for any"
        ) from None


class _Server:
    def __init__(self, role: Role, settings: LaunchSettings, folder: DataFolder, redis: ChildSpec | None) -> None:
        self._settings = settings
        self._specs = {spec.name: spec for spec in children(role, settings, folder, redis)}
        self._supervisor = Supervisor(
            list(self._specs.values()),
            say,
            start_timeout_s=settings.start_timeout,
            stop_grace_s=settings.stop_grace,
        )
        self._started = time.monotonic()
        self._signals = 0
        self._announcing: asyncio.Task[None] | None = None

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._interrupted)
        console.print(Text(f"Starting {', '.join(self._specs)}; Ctrl-C stops.", "dim"))
        try:
            await self._supervisor.run(self._ready)
        finally:
            if self._announcing is not None:
                self._announcing.cancel()
        console.print(Text("Stopped.", "dim"))

    def _interrupted(self) -> None:
        self._signals += 1
        if self._signals == 1:
            console.print(Text("Stopping; Ctrl-C again kills.", "dim"))
            self._supervisor.stop()
        else:
            self._supervisor.kill()

    def _ready(self) -> None:
        if "web" in self._specs:
            url = self._supervisor.ready_line("web").removeprefix("READY").strip()
            # A restarted web process must come back where the browsers look for it.
            self._specs["web"].command = web_command(self._settings.host, urlsplit(url).port or self._settings.port)
            self._announcing = asyncio.create_task(self._announce(url))
        else:
            console.print(Text(f"Midstream {', '.join(self._specs)} is ready {self._took()}", "bold"))

    async def _announce(self, url: str) -> None:
        """Prints the URL once a message sent there would be answered; on its own, `--role web` has no node yet."""
        if "host" in self._specs:
            while not await asyncio.to_thread(_answers, f"{url}/readyz"):  # noqa: ASYNC110  (another process)
                await asyncio.sleep(READY_POLL_S)
        console.print(Text(f"Midstream is ready at {url} {self._took()}", "bold"))

    def _took(self) -> str:
        return f"({time.monotonic() - self._started:.1f} s)"


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=HTTP_TIMEOUT_S) as reply:
            return bool(reply.status == 200)
    except (OSError, http.client.HTTPException):
        return False
