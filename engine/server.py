"""The loop around the engine core: one host on a Unix domain socket.

One thread: between two steps it reads what the host sent, so a command waits for at most the step that runs. Sockets
never block it: output that the host does not read is buffered up to a limit. The newest host connection wins; the
contexts of the one before are closed.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from engine import messages as m
from engine.core import EngineCore

_MAX_FRAME = 64 << 20
_MAX_UNSENT = 64 << 20
_READ_SIZE = 1 << 20
_STATS_INTERVAL_S = 0.5


class ConnectionDropped(Exception):
    """The host is gone, or sent what no host sends."""


class HostConnection:
    """Frames over a non-blocking socket."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.socket = connection
        self._received = bytearray()
        self._unsent = bytearray()

    @property
    def wants_write(self) -> bool:
        return bool(self._unsent)

    def receive(self) -> list[m.Command]:
        """All commands that have arrived whole. Raises `ConnectionDropped`."""
        try:
            data = self.socket.recv(_READ_SIZE)
        except BlockingIOError:
            return []
        except OSError as error:
            raise ConnectionDropped(str(error)) from error
        if not data:
            raise ConnectionDropped("closed by the host")
        self._received += data
        commands: list[m.Command] = []
        while (payload := self._next_payload()) is not None:
            try:
                commands += m.decode_commands(payload)
            except (msgspec.MsgspecError, RecursionError) as error:
                raise ConnectionDropped(f"not a command frame: {error}") from error
        return commands

    def send(self, output: m.Output) -> None:
        """Sends or buffers one output. Raises `ConnectionDropped`."""
        self._unsent += m.encode_output(output)
        self.flush()

    def flush(self) -> None:
        """Sends what the socket takes. Raises `ConnectionDropped`."""
        try:
            while self._unsent:
                sent = self.socket.send(self._unsent)
                del self._unsent[:sent]
        except BlockingIOError:
            if len(self._unsent) > _MAX_UNSENT:
                raise ConnectionDropped("the host does not read") from None
        except OSError as error:
            raise ConnectionDropped(str(error)) from error

    def _next_payload(self) -> bytes | None:
        if len(self._received) < 4:
            return None
        size = int.from_bytes(self._received[:4], "big")
        if size > _MAX_FRAME:
            raise ConnectionDropped(f"a frame of {size} bytes")
        if len(self._received) < 4 + size:
            return None
        payload = bytes(self._received[4 : 4 + size])
        del self._received[: 4 + size]
        return payload


class EngineServer:
    """Listens, reads commands, steps and sends what came out."""

    def __init__(self, core: EngineCore, ready: m.Ready, path: Path, log: Callable[[str], None]) -> None:
        self._core = core
        self._ready = ready
        self._path = path
        self._log = log
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._host: HostConnection | None = None
        self._next_stats = 0.0
        self._stopping = False

    def stop(self) -> None:
        """Ends `serve` after the step that runs; may be called from a signal handler."""
        self._stopping = True

    def serve(self) -> None:
        """Listens until `stop`. Raises `OSError` when the socket cannot be made."""
        self._path.unlink(missing_ok=True)
        self._listener.bind(str(self._path))
        self._path.chmod(0o600)
        self._listener.listen()
        self._listener.setblocking(False)
        self._log(f"listening on {self._path}")
        try:
            while not self._stopping:
                self._turn()
        finally:
            self._drop_host("the engine stops")
            self._listener.close()
            self._path.unlink(missing_ok=True)

    def _turn(self) -> None:
        """Reads, steps and writes once."""
        try:
            wait = self._core.wait_seconds()
            due = time.monotonic() + wait
            self._exchange(min(wait, _STATS_INTERVAL_S))
            if self._core.wait_seconds() == 0 or time.monotonic() >= due:
                started = time.time()
                items = self._core.step()
                if items and self._host is not None:
                    self._host.send(m.Step(started, time.time(), items))
            self._send_stats()
        except ConnectionDropped as reason:
            self._drop_host(str(reason))

    def _exchange(self, timeout: float) -> None:
        host = self._host
        reads: list[socket.socket] = [self._listener, *([host.socket] if host else [])]
        writes = [host.socket] if host and host.wants_write else []
        readable, writable, _ = select.select(reads, writes, [], timeout)
        if host and writable:
            host.flush()
        if host and host.socket in readable:
            for command in host.receive():
                self._core.apply(command)
        if self._listener in readable:
            self._accept()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        self._drop_host("replaced by a new host")
        self._host = HostConnection(connection)
        self._log("host connected")
        self._host.send(self._ready)

    def _send_stats(self) -> None:
        now = time.monotonic()
        if self._host is not None and now >= self._next_stats:
            self._next_stats = now + _STATS_INTERVAL_S
            self._host.send(self._core.stats())

    def _drop_host(self, reason: str) -> None:
        if self._host is None:
            return
        with contextlib.suppress(OSError):
            self._host.socket.close()
        self._host = None
        self._core.close_all()
        self._core.check_integrity()
        self._log(f"host disconnected: {reason}")
