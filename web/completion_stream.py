"""The answer to a streamed call: server-sent records for as long as the client is there."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from realtime.messages import CompletionPart
from web.completion_call import ClientGone, CompletionCall, raise_error

PING = b": ping\n\n"


async def begun(parts: AsyncIterator[CompletionPart | None]) -> AsyncIterator[CompletionPart | None]:
    """The same parts after waiting a moment for the first one, so that an early failure is still a status code and not
    a broken stream. Raises `ApiError` and `ClientGone`."""
    first = await anext(parts)
    if first is not None:
        raise_error(first)
    return _chain(first, parts)


async def _chain(
    first: CompletionPart | None, rest: AsyncIterator[CompletionPart | None]
) -> AsyncIterator[CompletionPart | None]:
    yield first
    async for part in rest:
        yield part


class RecordStream(Response):
    """Not Starlette's streaming response, because the call itself watches for the disconnect."""

    def __init__(self, call: CompletionCall, records: AsyncIterator[bytes]) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(status_code=200, headers=headers, media_type="text/event-stream")
        del self.headers["content-length"]
        self._call = call
        self._records = records

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            with contextlib.suppress(ClientGone):
                async for record in self._records:
                    await send({"type": "http.response.body", "body": record, "more_body": True})
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            # Shielded: the node must hear of it also when this task is being cancelled.
            await asyncio.shield(self._call.end())
