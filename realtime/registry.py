"""Which nodes live: a hash per node that expires when its heartbeat stops, and a sorted set to find them."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import redis.asyncio

from realtime import keys

HEARTBEAT_S = 1.0
TTL_S = 5


class NodeInfo(msgspec.Struct):
    """`engine` is "ready" or "lost"; `epoch` names the engine process whose KV this node holds; `started_at` changes
    with every start of the host, which tells web processes to attach their sockets anew."""

    node: str
    model: str
    epoch: str
    engine: str
    max_context: int
    sessions: int
    at: float
    stats: dict[str, float] = {}
    started_at: float = 0.0


async def heartbeat(client: redis.asyncio.Redis, info: NodeInfo, metrics: bytes) -> None:
    """Publishes the node and its Prometheus exposition text."""
    async with client.pipeline(transaction=True) as pipeline:
        pipeline.set(keys.node(info.node), msgspec.json.encode(info), ex=TTL_S)
        pipeline.set(keys.node_metrics(info.node), metrics, ex=TTL_S)
        pipeline.zadd(keys.NODES, {info.node: info.at})
        await pipeline.execute()


async def live_nodes(client: redis.asyncio.Redis) -> list[NodeInfo]:
    """Nodes with a fresh heartbeat, least loaded first."""
    names: Any = await client.zrangebyscore(keys.NODES, time.time() - TTL_S, "+inf")
    if not names:
        return []
    payloads: Any = await client.mget([keys.node(name.decode()) for name in names])
    nodes = [msgspec.json.decode(payload, type=NodeInfo) for payload in payloads if payload]
    return sorted(nodes, key=lambda info: info.sessions)


async def remove(client: redis.asyncio.Redis, node: str) -> None:
    """Takes a node out at shutdown, so that nothing new is sent to it."""
    async with client.pipeline(transaction=True) as pipeline:
        pipeline.delete(keys.node(node), keys.node_metrics(node))
        pipeline.zrem(keys.NODES, node)
        await pipeline.execute()
