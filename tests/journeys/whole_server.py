"""A server for journeys: started once, looked into through its Redis, and known to leave nothing behind."""

from __future__ import annotations

import http.client
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import msgspec
import psutil
import redis

from bench.server import COMMANDS, Server, running_server
from launch.data_folder import DataFolder
from launch.embedded_redis import embedded_url

PROCESSES = tuple(COMMANDS)
PATIENCE_S = 60.0
POLL_S = 0.1


@dataclass
class WholeServer:
    server: Server
    redis: redis.Redis

    @property
    def url(self) -> str:
        return self.server.websocket_url

    def kill(self, name: str) -> None:
        self.server.kill(name)

    def await_whole(self) -> None:
        """Returns when all five processes are there and the server is ready for a turn with a tool."""
        _await(self._is_whole, "the server is not whole")

    def await_rest(self) -> None:
        """Returns when nothing is left over of any turn."""
        _await(lambda: not self._remains(), self._remains)

    def tool_runs(self) -> dict[str, tuple[str, int]]:
        """State and number of runs of every tool call there was, by its key."""
        found: dict[str, tuple[str, int]] = {}
        for key in self.redis.scan_iter("ms:tool:*"):
            state, runs = cast("list[bytes | None]", self.redis.hmget(key, ["state", "runs"]))
            found[key.decode()] = ((state or b"").decode(), int(runs or 0))
        return found

    def await_tool_start(self, known: Iterable[str]) -> None:
        """Returns when a worker runs a call that is not among the `known` ones."""
        _await(lambda: any(runs for key, (_, runs) in self.tool_runs().items() if key not in known), self.tool_runs)

    def _is_whole(self) -> bool:
        try:
            for name in PROCESSES:
                self.server.pid(name)
            with urllib.request.urlopen(f"{self.server.url}/readyz", timeout=5) as reply:
                return reply.status == 200 and any(self.redis.scan_iter("ms:worker:*"))
        except (LookupError, psutil.NoSuchProcess, OSError, http.client.HTTPException, redis.RedisError):
            return False

    def _remains(self) -> dict[str, Any]:
        try:
            inbox: Any = self.redis.xinfo_groups("ms:node:node-1:inbox")
            node: Any = self.redis.get("ms:node:node-1")
            stats = msgspec.json.decode(node)["stats"] if node else {"no": 1}
            found = {
                "active": self.redis.scard("ms:node:node-1:active"),
                "pending": sum(group["pending"] for group in inbox),
                "inbox": self.redis.xlen("ms:node:node-1:inbox"),
                "stats": {
                    name: stats.get(name, -1.0) for name in ("running", "waiting", "blocks_running", "blocks_held")
                },
                "lost KV": self._lost_kv(msgspec.json.decode(node)["epoch"] if node else ""),
                "unfinished tools": [
                    key for key, (state, _) in self.tool_runs().items() if state not in ("done", "failed")
                ],
            }
        except redis.RedisError as error:
            return {"redis": error}
        return {
            name: value for name, value in found.items() if (any(value.values()) if isinstance(value, dict) else value)
        }

    def kv_sessions(self) -> set[str]:
        """The sessions that have KV somewhere, as Redis says."""
        return {key.decode().removeprefix("ms:kv:") for key in self.redis.scan_iter("ms:kv:*")}

    def _lost_kv(self, epoch: str) -> list[str]:
        """Sessions that are said to have KV in an engine that is no more."""
        sessions = self.kv_sessions()
        return [name for name in sessions if self.redis.hget(f"ms:kv:{name}", "epoch") != epoch.encode()]


@contextmanager
def whole_server(data: Path, **settings: str) -> Iterator[WholeServer]:
    """In fp32, so that texts can be compared. Asserts that no process outlives the server."""
    with running_server(data, dtype="float32", node_id="node-1", **settings) as server:
        with redis.Redis.from_url(embedded_url(DataFolder(data))) as client:
            yield WholeServer(server, client)
        processes = psutil.Process(server.process.pid).children(recursive=True)
    _, alive = psutil.wait_procs(processes, timeout=5)
    assert not alive, server.log[-30:]


def _await(condition: Callable[[], bool], complaint: str | Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, complaint if isinstance(complaint, str) else complaint()
        time.sleep(POLL_S)
