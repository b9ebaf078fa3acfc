from __future__ import annotations

import asyncio

import redis.asyncio

from realtime import registry
from tests.web.conftest import Node
from web.nodes import NodeCache


class Watched(NodeCache):
    def __init__(self, client: redis.asyncio.Redis) -> None:
        self.changes: list[tuple[set[str], set[str]]] = []
        super().__init__(client, lambda lost, returned: self.changes.append((lost, returned)))


async def test_the_least_loaded_node_is_chosen(redis_client: redis.asyncio.Redis) -> None:
    for name, sessions in (("a", 5), ("b", 2)):
        node = Node(redis_client, name)
        node.info.sessions = sessions
        await node.register()
    chosen = await NodeCache(redis_client, lambda lost, returned: None).choose()
    assert chosen is not None
    assert chosen.node == "b"


async def test_the_preferred_node_wins_while_it_lives(redis_client: redis.asyncio.Redis) -> None:
    cache = NodeCache(redis_client, lambda lost, returned: None)
    await Node(redis_client, "a").register()
    await Node(redis_client, "b").register()
    assert (await cache.choose("b")).node == "b"  # type: ignore[union-attr]
    await registry.remove(redis_client, "b")
    await cache.refresh()
    assert (await cache.choose("b")).node == "a"  # type: ignore[union-attr]


async def test_a_model_that_no_node_serves_finds_none(redis_client: redis.asyncio.Redis) -> None:
    await Node(redis_client).register()
    assert await NodeCache(redis_client, lambda lost, returned: None).choose(model="other") is None


async def test_changes_are_reported_including_a_host_that_started_anew(redis_client: redis.asyncio.Redis) -> None:
    cache, node = Watched(redis_client), Node(redis_client)
    for step in (node.register, lambda: registry.remove(redis_client, "node-1"), node.register):
        await step()
        await cache.refresh()
    node.info.started_at = 2.0
    await node.register()
    await cache.refresh()
    await cache.refresh()
    assert cache.changes == [(set(), {"node-1"}), ({"node-1"}, set()), (set(), {"node-1"}), (set(), {"node-1"})]


async def test_without_redis_no_node_lives() -> None:
    client = redis.asyncio.Redis.from_url("unix:///nowhere.sock")
    cache = NodeCache(client, lambda lost, returned: None)
    assert await cache.choose() is None
    assert not cache.redis_answers
    await client.aclose()


async def test_callers_that_come_together_share_one_question(redis_client: redis.asyncio.Redis) -> None:
    await redis_client.config_resetstat()
    cache = NodeCache(redis_client, lambda lost, returned: None)
    await asyncio.gather(*(cache.refresh() for _ in range(50)))
    stats = await redis_client.info("commandstats")
    assert stats["cmdstat_zrangebyscore"]["calls"] <= 2
