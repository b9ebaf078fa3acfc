"""The inbox of a node: one Redis stream, one consumer group, at-least-once, acknowledged with the effects."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
import redis
import redis.asyncio

from realtime import keys
from realtime.messages import InboxMessage, decode_inbox, encode

log = logging.getLogger(__name__)

GROUP = "host"
FIELD = b"m"
MAX_LENGTH = 100_000


async def post(client: redis.asyncio.Redis, node: str, message: InboxMessage) -> None:
    """Adds one message to a node's inbox. Raises `redis.RedisError` when Redis stays unreachable."""
    await client.xadd(keys.node_inbox(node), {FIELD: encode(message)}, maxlen=MAX_LENGTH, approximate=True)


async def post_all(client: redis.asyncio.Redis, node: str, messages: list[InboxMessage]) -> None:
    """Adds messages in order, in one round trip. Raises `redis.RedisError`; then any part of them may have arrived."""
    key = keys.node_inbox(node)
    async with client.pipeline(transaction=False) as pipeline:
        for message in messages:
            pipeline.xadd(key, {FIELD: encode(message)}, maxlen=MAX_LENGTH, approximate=True)
        await pipeline.execute()


def post_sync(client: redis.Redis, node: str, message: InboxMessage) -> None:
    """The same for workers."""
    client.xadd(keys.node_inbox(node), {FIELD: encode(message)}, maxlen=MAX_LENGTH, approximate=True)


class Inbox:
    """The host's end. Entries read but not acknowledged by an earlier process of this node come first."""

    def __init__(self, client: redis.asyncio.Redis, node: str) -> None:
        self._client = client
        self._key = keys.node_inbox(node)
        self._consumer = node
        self._cursor = "0"

    async def read(self, block_ms: int = 1000, count: int = 256) -> list[tuple[bytes, InboxMessage]]:
        """Next messages with their entry ids; empty after `block_ms` without any. Raises `redis.RedisError`."""
        try:
            reply = await self._client.xreadgroup(
                GROUP, self._consumer, {self._key: self._cursor}, count=count, block=block_ms
            )
        except redis.ResponseError as error:
            if "NOGROUP" not in str(error):
                raise
            await self._create_group()
            return []
        entries: list[tuple[bytes, dict[bytes, bytes]]] = []
        for _, batch in stream_batches(reply):
            entries.extend(batch)
        if self._cursor != ">":
            self._cursor = entries[-1][0].decode() if entries else ">"
        return [pair for entry_id, fields in entries if (pair := await self._decode(entry_id, fields))]

    def acknowledge(self, pipeline: redis.asyncio.client.Pipeline, entry_ids: list[bytes]) -> None:
        """Queues the acknowledgement; it belongs in the same MULTI as the effects of those messages."""
        pipeline.xack(self._key, GROUP, *entry_ids)
        pipeline.xdel(self._key, *entry_ids)

    async def _create_group(self) -> None:
        # From the start: messages posted before the node first came up are not lost.
        await self._client.xgroup_create(self._key, GROUP, id="0", mkstream=True)

    async def _decode(self, entry_id: bytes, fields: dict[bytes, bytes]) -> tuple[bytes, InboxMessage] | None:
        try:
            return entry_id, decode_inbox(fields[FIELD])
        except (KeyError, msgspec.DecodeError) as error:
            log.warning("dropped an undecodable inbox entry %s: %s", entry_id.decode(), error)
            await self._client.xdel(self._key, entry_id)
            return None


def stream_batches(reply: Any) -> list[tuple[bytes, list[tuple[bytes, dict[bytes, bytes]]]]]:
    """XREAD replies are a list of pairs (RESP2) or a dict of lists (RESP3)."""
    if not reply:
        return []
    if isinstance(reply, dict):
        return [(name, batches[0]) for name, batches in reply.items()]
    return [(name, batch) for name, batch in reply]
