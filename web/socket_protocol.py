"""uvicorn's WebSocket protocol, with a way to be rid of a client that has stopped reading."""

from __future__ import annotations

from typing import TYPE_CHECKING

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

if TYPE_CHECKING:
    from uvicorn._types import ASGISendEvent

ABORT_AFTER_S = 5.0


class SocketProtocol(WebSocketsSansIOProtocol):
    async def send(self, message: ASGISendEvent) -> None:
        """As in uvicorn, but a close does not wait for room in the write buffer, which such a client never makes."""
        if message["type"] == "websocket.close" and not self.writable.is_set():
            self.writable.set()
            self.loop.call_later(ABORT_AFTER_S, self.transport.abort)
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body"):
            # A refused handshake is complete too; uvicorn 0.54 would log an error about it.
            self.handshake_complete = True
