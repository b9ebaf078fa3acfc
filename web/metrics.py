"""`/metrics`: this process's own measurements and those that the live nodes published, as one exposition."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import redis.asyncio
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, PlatformCollector, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from realtime import keys

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
_HTTP_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
_SOCKET_BUCKETS = (1, 10, 60, 300, 900, 3600, 4 * 3600, 24 * 3600)


class WebMetrics:
    """One registry per web process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        self.sockets_active = Gauge("midstream_ws_connections_active", "Open WebSockets.", registry=self.registry)
        self.sockets = Counter("midstream_ws_connections", "WebSockets accepted so far.", registry=self.registry)
        self.socket_seconds = Histogram(
            "midstream_ws_connection_seconds", "How long WebSockets stayed open.", registry=self.registry,
            buckets=_SOCKET_BUCKETS,
        )  # fmt: skip
        self.closes = Counter(
            "midstream_ws_closes", "WebSockets closed, by close code.", ["code"], registry=self.registry
        )
        self.resumes = Counter("midstream_ws_resumes", "Resume attempts.", ["result"], registry=self.registry)
        self.events = Counter("midstream_ws_events", "Events on WebSockets.", ["direction"], registry=self.registry)
        self.errors = Counter(
            "midstream_ws_errors", "Error events of this web process, by code.", ["code"], registry=self.registry
        )
        self.http_requests = Counter(
            "midstream_http_requests", "HTTP requests.", ["route", "method", "status"], registry=self.registry
        )
        self.http_seconds = Histogram(
            "midstream_http_request_seconds", "Until the last byte of the answer.", ["route"], registry=self.registry,
            buckets=_HTTP_BUCKETS,
        )  # fmt: skip

    async def exposition(self, client: redis.asyncio.Redis, nodes: list[str]) -> bytes:
        """The text for Prometheus. Raises `redis.RedisError`."""
        families = {family.name: family for family in self.registry.collect()}
        texts: Any = await client.mget([keys.node_metrics(node) for node in nodes]) if nodes else []
        for node, text in zip(nodes, texts, strict=True):
            _merge(families, node, text or b"")
        return generate_latest(_Families(families.values()))

    def own_exposition(self) -> bytes:
        """Without the nodes, for when Redis is away."""
        return generate_latest(self.registry)


class _Families(Collector):
    """Lets `generate_latest` write metric families that are at hand already."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _merge(families: dict[str, Metric], node: str, text: bytes) -> None:
    """Adds one node's families; a family may appear only once, so nodes are told apart by a label."""
    for family in text_string_to_metric_families(text.decode()):
        known = families.setdefault(family.name, family)
        samples = [sample._replace(labels={"node": node, **sample.labels}) for sample in family.samples]
        known.samples = samples if known is family else known.samples + samples


class HttpMetrics:
    """ASGI middleware: counts and times HTTP requests by endpoint."""

    def __init__(self, app: ASGIApp, metrics: WebMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 500
        started = time.perf_counter()

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watch)
        finally:
            endpoint = scope.get("endpoint")
            route = getattr(endpoint, "__name__", type(endpoint).__name__) if endpoint else "none"
            method = scope["method"] if scope["method"] in ("GET", "HEAD", "POST", "OPTIONS") else "other"
            self._metrics.http_requests.labels(route, method, str(status)).inc()
            self._metrics.http_seconds.labels(route).observe(time.perf_counter() - started)
