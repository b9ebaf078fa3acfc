from __future__ import annotations

import asyncio

import msgspec
import pytest
import redis.asyncio

from realtime.messages import Delivery
from realtime.redis_connection import connect
from realtime.tasks import cancel_and_wait
from tests.web.conftest import LIMIT_S, Node, Valkey
from web.relay import Channel, Relay


def channel(**limits: int) -> Channel:
    return Channel(**{"max_events": 10, "max_bytes": 1000, **limits})


async def test_take_returns_everything_that_waits_in_order() -> None:
    events = channel()
    events.push(b"1")
    events.push(b"2")
    assert await events.take() == [b"1", b"2"]


async def test_take_waits_for_an_event() -> None:
    events = channel()
    taking = asyncio.create_task(events.take())
    await asyncio.sleep(0)
    events.push(b"1")
    assert await taking == [b"1"]


async def test_a_repeated_sequence_number_is_ignored() -> None:
    events = channel()
    for seq in (1, 2, 2, 1, 3, -1, -1):
        events.push(str(seq).encode(), seq)
    assert await events.take() == [b"1", b"2", b"3", b"-1", b"-1"]


@pytest.mark.parametrize("limits", [{"max_events": 3}, {"max_bytes": 3}])
async def test_too_many_events_or_bytes_overflow(limits: dict[str, int]) -> None:
    events = channel(**limits)
    for _ in range(3):
        events.push(b"x")
    assert not events.overflowed.is_set()
    events.push(b"x")
    assert events.overflowed.is_set()


async def test_taking_makes_room() -> None:
    events = channel(max_bytes=3)
    for _ in range(5):
        events.push(b"xxx")
        await events.take()
    assert not events.overflowed.is_set()


async def test_deliveries_reach_their_channel_only(valkey: Valkey, redis_client: redis.asyncio.Redis) -> None:
    relay = Relay(redis_client, "web-1")
    first, second = channel(), channel()
    relay.open("a", first)
    relay.open("b", second)
    relay.close("b")
    relay.distribute([Delivery(name, msgspec.Raw(name.encode())) for name in ("a", "b", "c")])
    assert await first.take() == [b"a"]
    assert (relay.delivered, relay.undeliverable) == (1, 2)


async def test_thousands_of_deliveries_arrive_in_order(valkey: Valkey, redis_client: redis.asyncio.Redis) -> None:
    relay = Relay(redis_client, "web-1")
    channels = [channel(max_events=1000, max_bytes=1 << 20) for _ in range(20)]
    for index, each in enumerate(channels):
        relay.open(str(index), each)
    running = asyncio.create_task(relay.run())
    node = Node(redis_client)
    for number in range(100):
        for index in range(20):
            await node.deliver("web-1", str(index), number, seq=number)
    async with asyncio.timeout(LIMIT_S):
        for each in channels:
            got: list[bytes] = []
            while len(got) < 100:
                got += await each.take()
            assert got == [str(number).encode() for number in range(100)]
    await cancel_and_wait([running])


async def test_reading_goes_on_after_redis_restarts(own_valkey: Valkey) -> None:
    client = connect(own_valkey.url)
    relay = Relay(client, "web-1")
    events = channel()
    relay.open("a", events)
    running = asyncio.create_task(relay.run())
    node = Node(client)
    await node.deliver("web-1", "a", 1)
    async with asyncio.timeout(LIMIT_S):
        assert await events.take() == [b"1"]
        await asyncio.to_thread(own_valkey.stop)
        await asyncio.to_thread(own_valkey.start)
        await node.deliver("web-1", "a", 2)
        assert await events.take() == [b"2"]
    await cancel_and_wait([running])
    await client.aclose()
