from __future__ import annotations

import redis.asyncio
from prometheus_client.parser import text_string_to_metric_families

from tests.web.conftest import Node, Running, Serve, next_event


async def test_the_process_is_alive_without_anything_else(serve: Serve) -> None:
    async with serve(redis_url="unix:///nowhere.sock") as server, server.client() as client:
        assert (await client.get("/healthz")).status_code == 200
        response = await client.get("/readyz")
        assert (response.status_code, list(response.json()["missing"])) == (503, ["redis"])
        assert "midstream_ws_connections_active 0.0" in (await client.get("/metrics")).text


async def test_ready_needs_a_node_with_a_ready_engine(server: Running, redis_client: redis.asyncio.Redis) -> None:
    async with server.client() as client:
        assert list((await client.get("/readyz")).json()["missing"]) == ["node"]
        node = Node(redis_client)
        node.info.engine = "lost"
        await node.register()
        assert list((await client.get("/readyz")).json()["missing"]) == ["engine"]
        node.info.engine = "ready"
        await node.register()
        response = await client.get("/readyz")
        assert (response.status_code, response.json()["models"]) == (200, ["tiny"])


async def test_metrics_are_one_exposition_of_this_process_and_all_nodes(
    server: Running, redis_client: redis.asyncio.Redis
) -> None:
    for name in ("a", "b"):
        await Node(redis_client, name).register()
    async with server.socket() as socket, server.client() as client:
        await next_event(socket)
        await server.web.nodes.refresh()
        await client.get("/healthz")
        text = (await client.get("/metrics")).text
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert text.count("# TYPE midstream_turns_total counter") == 1
    turns = families["midstream_turns"].samples
    assert {(sample.labels["node"], sample.value) for sample in turns} == {("a", 3.0), ("b", 3.0)}
    assert families["midstream_ws_connections_active"].samples[0].value == 1
    requests = {tuple(sorted(sample.labels.items())) for sample in families["midstream_http_requests"].samples}
    assert (("method", "GET"), ("route", "healthz"), ("status", "200")) in requests
