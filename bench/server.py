"""A whole Midstream server of one's own, for a benchmark or a test: started, waited for, stopped."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

READY = re.compile(r"Midstream is ready at (http://\S+) \((\d+\.\d) s\)")
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 20.0
COMMANDS = {
    "redis": "valkey-server",
    "engine": "engine.process",
    "host": "realtime.host",
    "worker": "-m workers",
    "web": "web.serve",
}


@dataclass
class Server:
    """`url` is the server's own, `data` its folder; `log` collects what it prints."""

    data: Path
    url: str
    started_in_s: float
    process: subprocess.Popen[str]
    log: list[str] = field(default_factory=list)

    @property
    def websocket_url(self) -> str:
        return self.url.replace("http", "ws", 1) + "/v1/realtime"

    def pid(self, name: str) -> int:
        """The process id of "redis", "engine", "host", "worker" or "web" as it is now. Raises `LookupError`."""
        for child in psutil.Process(self.process.pid).children(recursive=False):
            command = " ".join(child.cmdline())
            if COMMANDS[name] in command:
                return int(child.pid)
        raise LookupError(f"no process {name}")

    def kill(self, name: str) -> None:
        """SIGKILL, as a crash or the out-of-memory killer would."""
        os.kill(self.pid(name), signal.SIGKILL)


@contextmanager
def running_server(data: Path | None = None, **settings: str) -> Iterator[Server]:
    """`settings` become `MIDSTREAM_*` variables. Raises `RuntimeError` when the server does not get ready."""
    with tempfile.TemporaryDirectory(prefix="ms-") as temporary:
        folder = data or Path(temporary)
        environment = os.environ | {f"MIDSTREAM_{name.upper()}": value for name, value in settings.items()}
        command = [sys.executable, "-m", "launch", "serve", "--port", "0", "--data", str(folder)]
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1
        )
        server, ready = Server(folder, "", 0.0, process), threading.Event()
        reader = threading.Thread(target=_read, args=(server, ready), daemon=True)
        reader.start()
        try:
            ready.wait(START_TIMEOUT_S)
            if not server.url:
                raise RuntimeError("the server did not start:\n" + "\n".join(server.log[-30:]))
            yield server
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            reader.join(STOP_TIMEOUT_S)


def _read(server: Server, ready: threading.Event) -> None:
    """Collects the log to its end; sets `ready` when the server is, or has ended."""
    assert server.process.stdout is not None
    with server.process.stdout as output:
        for line in output:
            server.log.append(line.rstrip())
            match = READY.search(line)
            if match and not server.url:
                server.url, server.started_in_s = match[1], float(match[2])
                ready.set()
    ready.set()
