"""The web application: routes, and what lives as long as the process."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute
from starlette.templating import Jinja2Templates

from realtime.presence import announce
from realtime.redis_connection import connect
from realtime.tasks import cancel_and_wait
from web import admin, api_schema, chat_completions, errors, health, models, pages, realtime_socket, responses
from web.dashboard import Dashboard
from web.metrics import HttpMetrics, WebMetrics
from web.nodes import NodeCache
from web.relay import Relay
from web.settings import WebSettings
from web.state import Socket, Web


def create_app(settings: WebSettings) -> Starlette:
    """Starts nothing yet; the background tasks run during the lifespan."""
    version = pages.static_version(pages.STATIC)
    web = _web(settings, f"/static/{version}")
    application = Starlette(
        routes=_routes(version),
        lifespan=_lifespan,
        middleware=[Middleware(HttpMetrics, metrics=web.metrics), Middleware(pages.SecurityHeaders)],
        exception_handlers={
            errors.ApiError: errors.answer_api_error,
            HTTPException: errors.answer_http_exception,
            Exception: errors.answer_crash,
        },
    )
    application.state.web = web
    return application


def _web(settings: WebSettings, static_url: str) -> Web:
    client = connect(settings.redis_url)
    web_id = f"web-{secrets.token_hex(6)}"
    sockets: set[Socket] = set()

    def nodes_changed(lost: set[str], returned: set[str]) -> None:
        for socket in list(sockets):
            socket.nodes_changed(lost, returned)

    nodes = NodeCache(client, nodes_changed)
    return Web(
        id=web_id,
        settings=settings,
        redis=client,
        relay=Relay(client, web_id),
        nodes=nodes,
        metrics=WebMetrics(),
        dashboard=Dashboard(client, nodes),
        templates=Jinja2Templates(pages.TEMPLATES),
        static_url=static_url,
        sockets=sockets,
    )


def _routes(version: str) -> list[BaseRoute]:
    return [
        Route("/", pages.chat_page),
        Route("/admin", pages.admin_page),
        Route("/login", pages.login, methods=["GET", "POST"]),
        Route("/admin/events", admin.admin_events),
        Route("/healthz", health.healthz),
        Route("/readyz", health.readyz),
        Route("/metrics", health.metrics),
        Route("/docs/schema.json", api_schema.schema_json),
        Route("/docs/asyncapi.json", api_schema.asyncapi_json),
        Route("/v1/models", models.list_models),
        Route("/v1/models/{model:path}", models.get_model),
        Route("/v1/chat/completions", chat_completions.chat_completions, methods=["POST"]),
        Route("/v1/responses", responses.create_response, methods=["POST"]),
        Route("/v1/responses/{response_id}", responses.get_response, methods=["GET"]),
        Route("/v1/responses/{response_id}", responses.delete_response, methods=["DELETE"]),
        Route("/v1/responses/{response_id}/input_items", responses.list_input_items),
        Route("/v1/responses/{response_id}/cancel", responses.cancel_response, methods=["POST"]),
        WebSocketRoute("/v1/realtime", realtime_socket.realtime_socket),
        Route("/v1/realtime", realtime_socket.upgrade_required),
        Mount(f"/static/{version}", pages.VersionedFiles(directory=pages.STATIC), name="static"),
    ]


@contextlib.asynccontextmanager
async def _lifespan(application: Starlette) -> AsyncIterator[None]:
    web: Web = application.state.web
    tasks = [
        asyncio.create_task(web.relay.run(), name="relay"),
        asyncio.create_task(web.nodes.run(), name="nodes"),
        asyncio.create_task(web.dashboard.run(), name="dashboard"),
        asyncio.create_task(announce(web.redis, web.id), name="presence"),
    ]
    try:
        yield
    finally:
        web.closing.set()
        await cancel_and_wait(tasks)
        await web.redis.aclose()
