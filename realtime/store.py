"""What Redis keeps of a session: its record, its conversation items, and where its KV is."""

from __future__ import annotations

from typing import Any

import msgspec
import redis.asyncio

from realtime import keys


class SessionRecord(msgspec.Struct):
    """`config` is the effective session configuration; `seq` the last one emitted. Never holds unsent text."""

    owner: str
    node: str
    model: str
    config: str
    seq: int
    revision: int
    active_response: str


def _fields(record: msgspec.Struct) -> dict[Any, Any]:
    return msgspec.structs.asdict(record)


def save_session(pipeline: redis.asyncio.client.Pipeline, session: str, record: SessionRecord, ttl_s: int) -> None:
    """Queues the write of the whole record and renews the retention of everything the session owns."""
    pipeline.hset(keys.session(session), mapping=_fields(record))
    for key in (keys.session(session), keys.session_items(session), keys.session_order(session)):
        pipeline.expire(key, ttl_s)


def save_item(pipeline: redis.asyncio.client.Pipeline, session: str, item: str, payload: bytes) -> None:
    """Queues a new or changed conversation item; its place is kept by `save_order`."""
    pipeline.hset(keys.session_items(session), item, payload)


def save_order(pipeline: redis.asyncio.client.Pipeline, session: str, items: list[str]) -> None:
    """Queues the order of the conversation."""
    key = keys.session_order(session)
    pipeline.delete(key)
    if items:
        pipeline.rpush(key, *items)


def delete_item(pipeline: redis.asyncio.client.Pipeline, session: str, item: str) -> None:
    pipeline.hdel(keys.session_items(session), item)
    pipeline.lrem(keys.session_order(session), 0, item)


async def load_session(client: redis.asyncio.Redis, session: str) -> SessionRecord | None:
    """The stored record, or None when there is none (never existed, deleted, expired)."""
    fields: Any = await client.hgetall(keys.session(session))
    if not fields:
        return None
    return msgspec.convert({key.decode(): value.decode() for key, value in fields.items()}, SessionRecord, strict=False)


async def load_items(client: redis.asyncio.Redis, session: str) -> list[bytes]:
    """Item payloads in conversation order."""
    order: Any = await client.lrange(keys.session_order(session), 0, -1)
    if not order:
        return []
    payloads: Any = await client.hmget(keys.session_items(session), order)
    return [payload for payload in payloads if payload is not None]


class KvRecord(msgspec.Struct):
    """Where a session's KV is: `location` device, host, none, or partial (in two places, or some of it is gone), and
    of how many `tokens`; the last `decision`: preserve, swap, discard, restore, or "" while nothing holds it."""

    node: str
    epoch: str
    location: str
    tokens: int
    bytes: int
    decision: str
    reason: str
    since: float


def save_kv(pipeline: redis.asyncio.client.Pipeline, session: str, record: KvRecord, ttl_s: int) -> None:
    pipeline.hset(keys.kv(session), mapping=_fields(record))
    pipeline.expire(keys.kv(session), ttl_s)


def delete_kv(pipeline: redis.asyncio.client.Pipeline, session: str) -> None:
    pipeline.delete(keys.kv(session))


async def delete_kv_of_node(client: redis.asyncio.Redis, node: str) -> None:
    """Forgets where the KV of this node's sessions was. Raises `redis.RedisError`."""
    async for key in client.scan_iter(keys.kv("*"), count=1000):
        if await client.hget(key, "node") == node.encode():
            await client.delete(key)
