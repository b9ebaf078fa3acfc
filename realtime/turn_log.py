"""The last turns of the whole system, measured: what `/admin` draws. Holds no text."""

from __future__ import annotations

from typing import Any

import msgspec
import redis.asyncio

from realtime import keys
from realtime.inbox import stream_batches
from realtime.messages import TurnRecord, encode

FIELD = b"t"
LENGTH = 1000

_decoder = msgspec.json.Decoder(TurnRecord)


def add_turn(pipeline: redis.asyncio.client.Pipeline, record: TurnRecord) -> None:
    """Queues one finished turn."""
    pipeline.xadd(keys.TURNS, {FIELD: encode(record)}, maxlen=LENGTH, approximate=True)


async def recent_turns(client: redis.asyncio.Redis, count: int) -> tuple[bytes, list[TurnRecord]]:
    """The newest `count` turns, oldest first, and the cursor from which `next_turns` goes on."""
    entries: Any = await client.xrevrange(keys.TURNS, count=count)
    turns = [_decoder.decode(fields[FIELD]) for _, fields in reversed(entries)]
    return (entries[0][0] if entries else b"0"), turns


async def next_turns(
    client: redis.asyncio.Redis, cursor: bytes, block_ms: int = 1000
) -> tuple[bytes, list[TurnRecord]]:
    """Turns finished after `cursor`; empty after `block_ms` without any."""
    turns: list[TurnRecord] = []
    for _, batch in stream_batches(await client.xread({keys.TURNS: cursor}, block=block_ms)):
        for entry_id, fields in batch:
            cursor = entry_id
            turns.append(_decoder.decode(fields[FIELD]))
    return cursor, turns
