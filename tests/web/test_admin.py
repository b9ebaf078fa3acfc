from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import redis.asyncio

from realtime import turn_log
from realtime.messages import TurnRecord
from tests.web.conftest import Node, Running, Serve
from tests.web.test_percentiles import turn


async def records(response: httpx.Response) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    event = ""
    async for line in response.aiter_lines():
        if line.startswith("event: "):
            event = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield event, json.loads(line.removeprefix("data: "))


async def log_turns(client: redis.asyncio.Redis, *turns: TurnRecord) -> None:
    async with client.pipeline() as pipeline:
        for each in turns:
            turn_log.add_turn(pipeline, each)
        await pipeline.execute()


async def test_the_feed_begins_with_a_snapshot_and_goes_on_live(
    server: Running, node: Node, redis_client: redis.asyncio.Redis
) -> None:
    async with server.client() as client, client.stream("GET", "/admin/events") as response:
        feed = records(response)
        event, data = await anext(feed)
        assert event == "snapshot"
        assert (data["latency"], data["turns"], data["redis"]) == ([], [], True)
        assert data["nodes"][0]["node"] == "node-1"
        await log_turns(redis_client, turn(turn="t1"), turn(turn="t2"))
        seen: list[str] = []
        while len(seen) < 2:
            event, data = await anext(feed)
            if event == "turns":
                seen += [each["turn"] for each in reversed(data["turns"])]
        assert seen == ["t1", "t2"]
        assert data["latency"][0]["ttft"]["count"] == 2


async def test_nodes_are_reported_regularly(server: Running, node: Node) -> None:
    async with server.client() as client, client.stream("GET", "/admin/events") as response:
        feed = records(response)
        await anext(feed)
        event, data = await anext(feed)
        assert (event, len(data["nodes"])) == ("nodes", 1)


async def test_a_late_dashboard_gets_the_last_fifty_turns_newest_first(
    serve: Serve, node: Node, redis_client: redis.asyncio.Redis
) -> None:
    await log_turns(redis_client, *(turn(turn=f"t{number}") for number in range(60)))
    async with serve() as server, server.client() as client:
        while server.web.dashboard.turn_number < 60:
            await server.web.dashboard.wait(server.web.dashboard.turn_number)
        async with client.stream("GET", "/admin/events") as response:
            _, data = await anext(records(response))
    assert [each["turn"] for each in data["turns"]] == [f"t{number}" for number in range(59, 9, -1)]
    assert data["window"] == 60


async def test_the_feed_needs_a_key_where_keys_are_configured(serve: Serve, node: Node) -> None:
    async with serve(api_keys=["secret"]) as server, server.client() as client:
        assert (await client.get("/admin/events")).status_code == 401
