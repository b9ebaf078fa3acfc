"""Which nodes live, as this web process sees it: refreshed in the background, and on demand when none fits."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

import redis
import redis.asyncio

from realtime.registry import NodeInfo, live_nodes

log = logging.getLogger(__name__)

REFRESH_S = 0.5
LIMIT_S = 2.0


class NodeCache:
    """`on_change(lost, returned)` is told the ids of nodes that stopped living, and of those that came (back) or
    whose host started anew: sockets attached to these must attach again."""

    def __init__(self, client: redis.asyncio.Redis, on_change: Callable[[set[str], set[str]], None]) -> None:
        self._client = client
        self._on_change = on_change
        self._live: dict[str, NodeInfo] = {}
        self._asked_at = 0.0
        self._refreshing = asyncio.Lock()
        self.redis_answers = False

    @property
    def live(self) -> list[NodeInfo]:
        """Least loaded first."""
        return list(self._live.values())

    def is_live(self, node: str) -> bool:
        return node in self._live

    def models(self) -> list[str]:
        """Names of the models that can be asked for, without repetition."""
        return list(dict.fromkeys(info.model for info in self._live.values()))

    async def choose(self, preferred: str = "", model: str = "") -> NodeInfo | None:
        """The preferred node while it lives, else the least loaded one that serves `model` ("" = any), else None."""
        chosen = self._pick(preferred, model)
        if chosen is None:
            await self.refresh()
            chosen = self._pick(preferred, model)
        return chosen

    async def refresh(self) -> None:
        """Asks Redis; callers that come together share one question. Without an answer no node counts as live."""
        called_at = time.monotonic()
        async with self._refreshing:
            if self._asked_at > called_at:
                return
            self._asked_at = time.monotonic()
            try:
                async with asyncio.timeout(LIMIT_S):
                    nodes = await live_nodes(self._client)
                self.redis_answers = True
            except (redis.RedisError, OSError, TimeoutError) as error:
                if self.redis_answers:
                    log.warning("redis is away: %s", error)
                self.redis_answers = False
                nodes = []
            self._replace({info.node: info for info in nodes})

    async def run(self) -> None:
        """Keeps refreshing; cancel to stop."""
        while True:
            await self.refresh()
            await asyncio.sleep(REFRESH_S)

    def _pick(self, preferred: str, model: str) -> NodeInfo | None:
        if preferred in self._live:
            return self._live[preferred]
        return next((info for info in self._live.values() if model in ("", info.model)), None)

    def _replace(self, live: dict[str, NodeInfo]) -> None:
        before, self._live = self._live, live
        lost = before.keys() - live.keys()
        returned = {
            name for name, info in live.items() if name not in before or before[name].started_at != info.started_at
        }
        if lost or returned:
            self._on_change(set(lost), returned)
