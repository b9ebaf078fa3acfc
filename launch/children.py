"""Which programs make up a server, per role, and how they find each other."""

from __future__ import annotations

import re
import sys
from enum import StrEnum

from launch.child_process import ChildSpec
from launch.data_folder import DataFolder
from launch.settings import LaunchSettings

ENGINE_READY = re.compile(r"READY\b|listening on ")
# Advice to someone at a terminal of its own.
CELERY_CHATTER = re.compile(r"Hitting Ctrl\+C again will terminate")


class Role(StrEnum):
    ALL = "all"
    WEB = "web"
    NODE = "node"
    WORKER = "worker"


def children(role: Role, settings: LaunchSettings, folder: DataFolder, redis: ChildSpec | None) -> list[ChildSpec]:
    """In starting order. `redis` is the embedded one, if any; `settings.redis_url` already points to it."""
    engine_socket = folder.socket_path("engine.sock")
    after = ("redis",) if redis else ()
    env = {
        "MIDSTREAM_REDIS_URL": settings.redis_url,
        "MIDSTREAM_DATA": str(folder.path),
        "MIDSTREAM_NODE_ID": settings.node_id,
        "MIDSTREAM_ENGINE_SOCKET": str(engine_socket),
    }
    parts = {
        # The slowest to start comes first, and waits for nobody.
        "engine": (
            Role.NODE,
            ChildSpec("engine", _module("engine.process", "--socket", str(engine_socket)), env, ready=ENGINE_READY),
        ),
        "host": (Role.NODE, ChildSpec("host", _module("realtime.host"), env, after)),
        "worker": (Role.WORKER, ChildSpec("worker", _module("workers"), env, after, hidden=CELERY_CHATTER)),
        "web": (Role.WEB, ChildSpec("web", web_command(settings.host, settings.port), env, after)),
    }
    chosen = [spec for needed, spec in parts.values() if role in (Role.ALL, needed)]
    return [redis, *chosen] if redis else chosen


def web_command(host: str, port: int) -> list[str]:
    return _module("web.serve", "--host", host, "--port", str(port))


def _module(name: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", name, *arguments]
