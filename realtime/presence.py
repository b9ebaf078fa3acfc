"""Whether web processes live: each says so every few seconds, and hosts let go of the sockets of one that does not."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Set
from typing import Any

import redis
import redis.asyncio

from realtime import keys

ANNOUNCE_S = 5.0
TTL_S = 15
GRACE_S = 30.0


async def announce(client: redis.asyncio.Redis, web: str) -> None:
    """Says for ever that this web process lives; cancel to stop."""
    while True:
        with contextlib.suppress(redis.RedisError, OSError):
            await client.set(keys.web(web), b"", ex=TTL_S)
        await asyncio.sleep(ANNOUNCE_S)


class Absences:
    """Notes since when web processes are silent. A Redis that was away is no sign of their death, so each gets
    `GRACE_S` from the moment in which its silence was first seen."""

    def __init__(self, client: redis.asyncio.Redis, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._silent_since: dict[str, float] = {}

    async def dead(self, webs: Set[str]) -> set[str]:
        """Those of `webs` that have been silent for too long; none while Redis does not answer."""
        names = sorted(webs)
        try:
            found: Any = await self._client.mget([keys.web(name) for name in names]) if names else []
        except (redis.RedisError, OSError):
            found = [b""] * len(names)
        now = self._clock()
        silent = {name for name, value in zip(names, found, strict=True) if value is None}
        self._silent_since = {name: self._silent_since.get(name, now) for name in silent}
        return {name for name, since in self._silent_since.items() if now - since >= GRACE_S}
