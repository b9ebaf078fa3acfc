"""The replayable log of one session: server events under their `seq`, capped and expiring."""

from __future__ import annotations

from typing import Any

import redis.asyncio

from realtime import keys

FIELD = b"e"


def append(
    pipeline: redis.asyncio.client.Pipeline, session: str, events: list[tuple[int, bytes]], length: int, ttl_s: int
) -> None:
    """Queues `(seq, event JSON)` pairs. The entry id is `{seq}-0`, so a client's `last_event_id` is a cursor."""
    key = keys.session_log(session)
    for seq, event in events:
        pipeline.xadd(key, {FIELD: event}, id=f"{seq}-0", maxlen=length, approximate=True)
    pipeline.expire(key, ttl_s)


async def read_after(client: redis.asyncio.Redis, session: str, seq: int) -> list[bytes] | None:
    """Events with a greater `seq`, oldest first; None when some of them are no longer in the log."""
    entries: Any = await client.xrange(keys.session_log(session), min=f"{seq + 1}-0")
    if entries and int(entries[0][0].split(b"-")[0]) != seq + 1:
        return None
    return [fields[FIELD] for _, fields in entries]


async def read_all(client: redis.asyncio.Redis, session: str) -> list[bytes]:
    """What the log still holds, oldest first."""
    entries: Any = await client.xrange(keys.session_log(session))
    return [fields[FIELD] for _, fields in entries]
