"""The dashboard's live feed: server-sent events, a snapshot first and then what changes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from web.auth import authenticate
from web.errors import ApiError
from web.state import Web, web_of

_encoder = msgspec.json.Encoder()


async def admin_events(request: Request) -> Response:
    """GET /admin/events: `snapshot`, then `nodes` every second and `turns` whenever turns finished."""
    web = web_of(request)
    if authenticate(request, web.settings) is None:
        raise ApiError(401, "invalid_api_key", "an API key is needed")
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(_feed(web), media_type="text/event-stream", headers=headers)


async def _feed(web: Web) -> AsyncIterator[bytes]:
    dashboard = web.dashboard
    await web.nodes.refresh()
    seen = dashboard.turn_number
    yield _record("snapshot", dashboard.snapshot())
    while not web.closing.is_set():
        await dashboard.wait(seen)
        if dashboard.turn_number > seen:
            yield _record("turns", dashboard.turns_view(seen))
            seen = dashboard.turn_number
        else:
            yield _record("nodes", dashboard.nodes_view())


def _record(event: str, data: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event.encode(), _encoder.encode(data))
