"""A small WebSocket client that notes when each event came: what the realtime benchmark measures with."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

EVENT_TIMEOUT_S = 120.0


@dataclass
class Answer:
    """One response as the client saw it. Times are `time.time()` seconds; `token_times` has one per text delta."""

    sent_at: float
    token_times: list[float]
    text: str
    response: dict[str, Any]
    trace: dict[str, Any]
    items: list[dict[str, Any]]

    @property
    def ttft_s(self) -> float:
        return self.token_times[0] - self.sent_at


class RealtimeClient:
    """Use as an async context manager."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._socket: ClientConnection | None = None
        self.events: list[tuple[float, dict[str, Any]]] = []

    async def __aenter__(self) -> RealtimeClient:
        self._socket = await connect(self._url, max_size=None, compression=None)
        await self.until("session.created")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.socket.close()

    @property
    def socket(self) -> ClientConnection:
        assert self._socket is not None
        return self._socket

    async def send(self, event_type: str, **fields: Any) -> None:
        await self.socket.send(json.dumps({"type": event_type, **fields}))

    async def receive(self) -> dict[str, Any]:
        """The next event. Raises `TimeoutError` when none comes."""
        message = await asyncio.wait_for(self.socket.recv(), EVENT_TIMEOUT_S)
        event: dict[str, Any] = json.loads(message)
        self.events.append((time.time(), event))
        return event

    async def until(self, *event_types: str) -> dict[str, Any]:
        """The next event of one of these types; an `error` event raises `RuntimeError`."""
        while True:
            event = await self.receive()
            if event["type"] in event_types:
                return event
            if event["type"] == "error":
                raise RuntimeError(event["error"])

    async def configure(self, **session: Any) -> None:
        await self.send("session.update", session={"type": "realtime", **session})
        await self.until("session.updated")

    async def answer(self, **response: Any) -> Answer:
        """Sends `response.create` and reads to the end; the session must have asked for `midstream.trace`."""
        sent_at = time.time()
        await self.send("response.create", response=response)
        first = len(self.events)
        await self.until("midstream.trace")
        events = self.events[first:]
        # The trace of a keystroke has no response_id; one may still have been on its way.
        while "response_id" not in events[-1][1]:
            await self.until("midstream.trace")
            events = self.events[first:]
        deltas = [(at, event) for at, event in events if event["type"] == "response.output_text.delta"]
        done = next(event for _, event in events if event["type"] == "response.done")
        items = [event["item"] for _, event in events if event["type"] == "response.output_item.done"]
        return Answer(
            sent_at,
            [at for at, _ in deltas],
            "".join(event["delta"] for _, event in deltas),
            done["response"],
            events[-1][1],
            items,
        )
