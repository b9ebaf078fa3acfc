"""Liveness, readiness and metrics endpoints, for machines that watch the server."""

from __future__ import annotations

import asyncio
import logging

import redis
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from web.metrics import CONTENT_TYPE
from web.state import web_of

log = logging.getLogger(__name__)


async def healthz(request: Request) -> Response:
    """GET /healthz: this process answers."""
    return JSONResponse({"status": "ok"})


async def readyz(request: Request) -> Response:
    """GET /readyz: a message sent now would be answered. 503 names what is missing."""
    nodes = web_of(request).nodes
    await nodes.refresh()
    missing: dict[str, str] = {}
    if not nodes.redis_answers:
        missing["redis"] = "does not answer"
    elif not nodes.live:
        missing["node"] = "no node has reported within the last seconds"
    elif all(info.engine != "ready" for info in nodes.live):
        missing["engine"] = "no node has a ready engine"
    models = [info.model for info in nodes.live if info.engine == "ready"]
    body = {"status": "unavailable" if missing else "ready", "missing": missing, "models": models}
    return JSONResponse(body, status_code=503 if missing else 200)


async def metrics(request: Request) -> Response:
    """GET /metrics: Prometheus text of this process and of all live nodes."""
    web = web_of(request)
    try:
        async with asyncio.timeout(web.settings.redis_timeout_s):
            text = await web.metrics.exposition(web.redis, [info.node for info in web.nodes.live])
    except (redis.RedisError, OSError, TimeoutError) as error:
        log.warning("metrics without the nodes, redis is away: %s", error)
        text = web.metrics.own_exposition()
    return Response(text, media_type=CONTENT_TYPE)
