"""What `/admin` shows, kept current by one task and shared by every open dashboard."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Any

import msgspec
import redis
import redis.asyncio

from realtime import turn_log
from realtime.messages import TurnRecord
from realtime.registry import NodeInfo
from web.nodes import NodeCache
from web.percentiles import by_strategy
from web.waterfall import waterfall

log = logging.getLogger(__name__)

WATERFALLS = 50
TICK_S = 1.0
BLOCK_MS = 1000
READ_LIMIT_S = 10.0
MAX_BACKOFF_S = 2.0


class Dashboard:
    """Follows the turn log. `turn_number` grows with every turn seen."""

    def __init__(self, client: redis.asyncio.Redis, nodes: NodeCache) -> None:
        self._client = client
        self._nodes = nodes
        self._cursor: bytes | None = None
        self._turns: deque[TurnRecord] = deque(maxlen=turn_log.LENGTH)
        self._changed = asyncio.Condition()
        self.turn_number = 0

    async def run(self) -> None:
        """Follows for ever, over restarts of Redis; cancel to stop."""
        backoff = 0.0
        while True:
            try:
                async with asyncio.timeout(READ_LIMIT_S):
                    await self._follow()
                backoff = 0.0
            except (redis.RedisError, msgspec.DecodeError, OSError, TimeoutError) as error:
                if not backoff:
                    log.warning("the turn log cannot be read: %s", error)
                backoff = min(MAX_BACKOFF_S, 2 * backoff or 0.1)
                await asyncio.sleep(backoff)

    def snapshot(self) -> dict[str, Any]:
        """Everything, for a dashboard that was just opened."""
        newest = list(self._turns)[-WATERFALLS:]
        return {
            **self.nodes_view(),
            "latency": by_strategy(self._turns),
            "window": len(self._turns),
            "turns": [waterfall(turn) for turn in reversed(newest)],
        }

    def nodes_view(self) -> dict[str, Any]:
        return {"redis": self._nodes.redis_answers, "nodes": [_node(info) for info in self._nodes.live]}

    def turns_view(self, after: int) -> dict[str, Any]:
        """What the turns beyond number `after` change, newest first."""
        count = min(self.turn_number - after, WATERFALLS)
        newest = list(self._turns)[-count:] if count else []
        return {
            "latency": by_strategy(self._turns),
            "window": len(self._turns),
            "turns": [waterfall(turn) for turn in reversed(newest)],
        }

    async def wait(self, after: int) -> None:
        """Until there is a turn beyond number `after`, or a tick has passed."""
        try:
            async with asyncio.timeout(TICK_S), self._changed:
                await self._changed.wait_for(lambda: self.turn_number > after)
        except TimeoutError:
            pass

    async def _follow(self) -> None:
        if self._cursor is None:
            self._cursor, turns = await turn_log.recent_turns(self._client, turn_log.LENGTH)
        else:
            self._cursor, turns = await turn_log.next_turns(self._client, self._cursor, BLOCK_MS)
        if turns:
            self._turns.extend(turns)
            self.turn_number += len(turns)
            async with self._changed:
                self._changed.notify_all()


def _node(info: NodeInfo) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(info)
    return fields
