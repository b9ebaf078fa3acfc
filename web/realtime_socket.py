"""GET /v1/realtime: who may open a WebSocket, and which session it is for."""

from __future__ import annotations

import re

from starlette.requests import Request
from starlette.responses import Response
from starlette.websockets import WebSocket

from realtime.events import ProtocolError, new_id
from web.auth import SUBPROTOCOL, authenticate, offered_subprotocols, origin_allowed
from web.errors import ApiError
from web.realtime_connection import Opening, RealtimeConnection
from web.state import Web, web_of

_SESSION_ID = re.compile(r"sess_[A-Za-z0-9_-]{1,64}")
_SEQ = re.compile(r"[0-9]{1,15}")


async def realtime_socket(websocket: WebSocket) -> None:
    """Refuses with an HTTP status before the handshake, or serves the connection until it ends."""
    web = web_of(websocket)
    owner = authenticate(websocket, web.settings)
    refusal = _refusal(websocket, web, owner)
    if refusal is not None or owner is None:
        await websocket.send_denial_response((refusal or _unauthorized()).response())
        return
    # Only the plain name is selected: the other one holds the key and must not be echoed.
    subprotocol = SUBPROTOCOL if SUBPROTOCOL in offered_subprotocols(websocket) else None
    await websocket.accept(subprotocol=subprotocol)
    connection = RealtimeConnection(websocket, web, owner)
    try:
        opening = _opening(websocket)
    except ProtocolError as error:
        await connection.refuse(error)
        return
    await connection.run(opening)


async def upgrade_required(request: Request) -> Response:
    """GET /v1/realtime without a WebSocket handshake."""
    response = ApiError(426, "upgrade_required", "/v1/realtime is a WebSocket").response()
    response.headers["Upgrade"] = "websocket"
    return response


def _refusal(websocket: WebSocket, web: Web, owner: str | None) -> ApiError | None:
    if not origin_allowed(websocket, web.settings):
        return ApiError(403, "origin_not_allowed", "this origin may not connect")
    if owner is None:
        return _unauthorized()
    if web.closing.is_set() or len(web.sockets) >= web.settings.max_connections:
        return ApiError(503, "server_overloaded", "too many connections; try again in a moment")
    return None


def _unauthorized() -> ApiError:
    return ApiError(401, "invalid_api_key", "a valid API key is needed")


def _opening(websocket: WebSocket) -> Opening:
    """The query parameters. Raises `ProtocolError`."""
    if "realtime=v1" in websocket.headers.get("openai-beta", "").replace(" ", "").split(","):
        raise ProtocolError(
            "beta_api_unsupported", "the beta Realtime API is not served; leave the header out", "OpenAI-Beta"
        )
    query = websocket.query_params
    session, last = query.get("session_id"), query.get("last_event_id")
    if session is not None and not _SESSION_ID.fullmatch(session):
        raise ProtocolError("invalid_value", "session_id: not the id of a session", "session_id")
    if last is not None and not _SEQ.fullmatch(last):
        raise ProtocolError("invalid_value", "last_event_id: must be the seq of an event", "last_event_id")
    if last is not None and session is None:
        raise ProtocolError("missing_required_parameter", "last_event_id needs a session_id", "session_id")
    return Opening(
        session=session or new_id("sess_"),
        resume=session is not None,
        model=query.get("model", ""),
        last_event_id=int(last) if last is not None else -1,
    )
