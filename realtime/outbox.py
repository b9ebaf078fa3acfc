"""From a host to the web processes: one short stream per web process, one entry per flush."""

from __future__ import annotations

import redis.asyncio

from realtime import keys
from realtime.inbox import stream_batches
from realtime.messages import Delivery, decode_outbox, encode

FIELD = b"d"
MAX_LENGTH = 10_000
TTL_S = 60


def add_deliveries(pipeline: redis.asyncio.client.Pipeline, web: str, deliveries: list[Delivery]) -> None:
    """Queues one outbox entry; the stream of a web process that is gone expires by itself."""
    key = keys.web_outbox(web)
    pipeline.xadd(key, {FIELD: encode(deliveries)}, maxlen=MAX_LENGTH, approximate=True)
    pipeline.expire(key, TTL_S)


class OutboxReader:
    """The web process's end. The web id is new for every process start, so reading begins at the beginning."""

    def __init__(self, client: redis.asyncio.Redis, web: str) -> None:
        self._client = client
        self._key = keys.web_outbox(web)
        self._cursor: bytes = b"0"

    async def read(self, block_ms: int = 1000) -> list[Delivery]:
        """Next deliveries in order; empty after `block_ms` without any.

        Raises `redis.RedisError`; reading again goes on where it stopped.
        """
        reply = await self._client.xread({self._key: self._cursor}, block=block_ms, count=256)
        deliveries: list[Delivery] = []
        for _, batch in stream_batches(reply):
            for entry_id, fields in batch:
                self._cursor = entry_id
                deliveries.extend(decode_outbox(fields[FIELD]))
        return deliveries
