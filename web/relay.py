"""From the outbox to the sockets: one reader per web process, one bounded channel per socket."""

from __future__ import annotations

import asyncio
import logging

import msgspec
import redis
import redis.asyncio

from realtime.messages import Delivery
from realtime.outbox import OutboxReader

log = logging.getLogger(__name__)

BLOCK_MS = 1000
READ_LIMIT_S = 10.0
MAX_BACKOFF_S = 1.0


class Channel:
    """Events on their way to one client, in order. One task takes, anybody pushes.

    When more waits than the bounds allow, the client reads too slowly: everything is dropped, `overflowed` is set, and
    whoever owns the client must let it go. Nothing is ever dropped silently.
    """

    def __init__(self, max_events: int, max_bytes: int, last_seq: int = -1) -> None:
        self.overflowed = asyncio.Event()
        self.last_seq = last_seq
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._events: list[bytes] = []
        self._bytes = 0
        self._filled = asyncio.Event()

    def push(self, event: bytes, seq: int = -1) -> None:
        """Adds one event. One whose `seq` was pushed before is a repeated delivery and is ignored."""
        if self.overflowed.is_set() or -1 < seq <= self.last_seq:
            return
        self.last_seq = max(self.last_seq, seq)
        self._events.append(event)
        self._bytes += len(event)
        if len(self._events) > self._max_events or self._bytes > self._max_bytes:
            self._events.clear()
            self.overflowed.set()
        self._filled.set()

    async def take(self) -> list[bytes]:
        """All events that wait, at least one."""
        while not self._events:
            self._filled.clear()
            await self._filled.wait()
        events, self._events = self._events, []
        self._bytes = 0
        return events


class Relay:
    """Hands what arrives in this web process's outbox to the channel of its connection."""

    def __init__(self, client: redis.asyncio.Redis, web: str) -> None:
        self._reader = OutboxReader(client, web)
        self._channels: dict[str, Channel] = {}
        self.delivered = 0
        self.undeliverable = 0

    def open(self, connection: str, channel: Channel) -> None:
        self._channels[connection] = channel

    def close(self, connection: str) -> None:
        self._channels.pop(connection, None)

    async def run(self) -> None:
        """Reads for ever, over restarts of Redis; cancel to stop."""
        backoff = 0.0
        while True:
            try:
                async with asyncio.timeout(READ_LIMIT_S):
                    deliveries = await self._reader.read(BLOCK_MS)
            except (redis.RedisError, OSError, TimeoutError) as error:
                if not backoff:
                    log.warning("redis is away: %s", error)
                backoff = min(MAX_BACKOFF_S, 2 * backoff or 0.05)
                await asyncio.sleep(backoff)
                continue
            except msgspec.DecodeError as error:
                log.error("dropped an undecodable outbox entry: %s", error)
                continue
            if backoff:
                log.warning("redis is back")
                backoff = 0.0
            self.distribute(deliveries)

    def distribute(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            channel = self._channels.get(delivery.connection)
            if channel is None:
                self.undeliverable += 1
                continue
            channel.push(bytes(delivery.event), delivery.seq)
            self.delivered += 1
