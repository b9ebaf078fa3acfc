"""Everything the host writes to Redis, in order, one MULTI per flush: effects and acknowledgements are one atom.

A flush that fails is retried until Redis answers, so a Redis restart delays effects and loses none.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable

import msgspec
import redis
import redis.asyncio

from realtime.messages import Delivery
from realtime.outbox import add_deliveries

log = logging.getLogger(__name__)

Write = Callable[["redis.asyncio.client.Pipeline"], object]
MAX_BACKLOG = 100_000
RETRY_S = 0.2


class Publisher:
    """Collects writes and deliveries synchronously; `run` flushes them. `room` bounds what is queued."""

    def __init__(self, client: redis.asyncio.Redis) -> None:
        self._client = client
        self._writes: list[Write] = []
        self._deliveries: dict[str, list[Delivery]] = defaultdict(list)
        self._size = 0
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    async def room(self) -> None:
        """Waits while too much is queued, so that a host does not read more than it can write."""
        while self._size >= MAX_BACKLOG:
            await self._idle.wait()

    def write(self, operation: Write) -> None:
        """Queues one state change."""
        self._writes.append(operation)
        self._pending()

    def deliver(self, web: str, connection: str, event: bytes, seq: int = -1) -> None:
        """Queues one event for one socket; events of one connection keep their order."""
        self._deliveries[web].append(Delivery(connection, msgspec.Raw(event), seq))
        self._pending()

    async def run(self) -> None:
        """Flushes for ever; cancel after `drain`."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            writes, self._writes = self._writes, []
            deliveries, self._deliveries = self._deliveries, defaultdict(list)
            self._size = 0
            await self._flush(writes, deliveries)
            if not self._wake.is_set():
                self._idle.set()

    async def drain(self, timeout_s: float) -> None:
        """Waits until everything queued so far is in Redis. Raises `TimeoutError`."""
        await asyncio.wait_for(self._idle.wait(), timeout_s)

    def _pending(self) -> None:
        self._size += 1
        self._wake.set()
        self._idle.clear()

    async def _flush(self, writes: list[Write], deliveries: dict[str, list[Delivery]]) -> None:
        while True:
            try:
                async with self._client.pipeline(transaction=True) as pipeline:
                    for operation in writes:
                        operation(pipeline)
                    for web, batch in deliveries.items():
                        add_deliveries(pipeline, web, batch)
                    replies = await pipeline.execute(raise_on_error=False)
            except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
                log.warning("redis is away (%s); keeping %d writes", error, len(writes))
                await asyncio.sleep(RETRY_S)
                continue
            for reply in replies:
                # A retried flush may find its log entries already there; that is what their explicit ids are for.
                if isinstance(reply, Exception) and "equal or smaller" not in str(reply):
                    log.error("redis refused a write: %s", reply)
            return
