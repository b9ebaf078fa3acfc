"""A client that keeps everything it was told, for the journeys through the whole server."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any
from urllib.parse import urlencode

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

EVENT_LIMIT_S = 90.0
CONNECT_LIMIT_S = 60.0
WAIT_TOOL: dict[str, Any] = {
    "tools": [{"type": "mcp", "server_label": "midstream", "allowed_tools": ["wait"], "require_approval": "never"}],
    "tool_choice": {"type": "mcp", "server_label": "midstream", "name": "wait"},
}

Event = dict[str, Any]


@dataclass
class Reply:
    """One response: everything from its `response.created` to its `response.done`."""

    response: Event
    events: list[Event]

    @property
    def status(self) -> str:
        return str(self.response["status"])

    @property
    def text(self) -> str:
        """What the client has read."""
        return "".join(event["delta"] for event in self.events if event["type"] == "response.output_text.delta")


class Talk:
    """One client of one session, over as many sockets as it takes. Use as an async context manager."""

    def __init__(self, url: str, session: str = "", **query: str) -> None:
        self.session = session
        self.last_seq = -1
        self.events: list[Event] = []
        self._url = url
        self._query = query
        self._socket: ClientConnection | None = None
        self._numbers = itertools.count(1)

    async def __aenter__(self) -> Talk:
        await self.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.disconnect()

    @property
    def socket(self) -> ClientConnection:
        assert self._socket is not None
        return self._socket

    async def connect(self) -> None:
        """Opens a socket, patiently; from the second time on the same session goes on after the last event."""
        query: dict[str, Any] = dict(self._query)
        if self.session:
            query["session_id"] = self.session
        if self.last_seq >= 0:
            query["last_event_id"] = self.last_seq
        async with asyncio.timeout(CONNECT_LIMIT_S):
            while True:
                try:
                    self._socket = await connect(f"{self._url}?{urlencode(query)}", max_size=None, compression=None)
                    break
                except (OSError, InvalidHandshake):
                    await asyncio.sleep(0.1)
        created = await self.until("session.created")
        self.session = created["session"]["id"]

    async def disconnect(self) -> None:
        await self.socket.close()

    async def send(self, event_type: str, **fields: Any) -> str:
        """Returns the event's id."""
        event_id = f"e{next(self._numbers)}"
        await self.socket.send(json.dumps({"type": event_type, "event_id": event_id, **fields}))
        return event_id

    async def next(self) -> Event:
        """Raises `TimeoutError`, and `ConnectionClosed` when the socket is gone."""
        event: Event = json.loads(await asyncio.wait_for(self.socket.recv(), EVENT_LIMIT_S))
        self.events.append(event)
        self.last_seq = max(self.last_seq, event.get("seq", -1))
        return event

    async def until(self, *event_types: str) -> Event:
        """The next event of one of these types; errors are passed over like any other."""
        while True:
            event = await self.next()
            if event["type"] in event_types:
                return event

    async def next_over_reconnects(self) -> Event:
        while True:
            try:
                return await self.next()
            except ConnectionClosed:
                await self.connect()

    async def error(self, event_id: str) -> Event:
        """What the error event about this client event says."""
        while True:
            error: Event = (await self.until("error"))["error"]
            if error["event_id"] == event_id:
                return error

    async def configure(self, **session: Any) -> None:
        await self.send("session.update", session={"type": "realtime", **session})
        await self.until("session.updated")

    async def ask(self, text: str, **response: Any) -> str:
        """Commits a text and asks for an answer; returns the id of the `response.create`."""
        await self.send("input_text_buffer.commit", text=text)
        return await self.send("response.create", response=response)

    async def say(self, text: str, **response: Any) -> Reply:
        await self.ask(text, **response)
        return await self.reply()

    async def say_patiently(self, text: str, **response: Any) -> Reply:
        """As `say`, again for as long as the server says that it is not available for the moment."""
        while True:
            commit = await self.send("input_text_buffer.commit", text=text)
            while (event := await self.until("input_text_buffer.committed", "error"))["type"] == "error":
                if event["error"]["event_id"] == commit:
                    break
            if event["type"] == "input_text_buffer.committed":
                break
            assert event["error"]["code"] == "engine_unavailable", event
            await asyncio.sleep(0.2)
        await self.send("response.create", response=response)
        return await self.reply()

    async def wait_closed(self) -> None:
        """Reads until the socket is gone."""
        with suppress(ConnectionClosed):
            while True:
                await self.next()

    async def reply(self) -> Reply:
        """Waits for the response that is about to begin."""
        return await self.rest_of(await self.until("response.created"))

    async def rest_of(self, created: Event) -> Reply:
        """The rest of a response whose first event has been read, over as many sockets as it takes."""
        response_id = created["response"]["id"]
        while (done := self._done(response_id)) is None:
            await self.next_over_reconnects()
        first = self.events.index(created)
        return Reply(done["response"], self.events[first : self.events.index(done) + 1])

    def _done(self, response_id: str) -> Event | None:
        ended = (event for event in self.events if event["type"] == "response.done")
        return next((event for event in ended if event["response"]["id"] == response_id), None)

    def check(self) -> None:
        """Numbered events came once each and without a gap, and every response and tool call ended exactly once."""
        numbers = [event["seq"] for event in self.events if "seq" in event]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) if numbers else True
        begun = self._count("response.created", lambda event: event["response"]["id"])
        assert self._count("response.done", lambda event: event["response"]["id"]) == begun
        assert set(begun.values()) <= {1}
        calls = self._count("response.mcp_call.in_progress", lambda event: event["item_id"])
        ended = self._count("response.mcp_call.completed", lambda event: event["item_id"])
        ended += self._count("response.mcp_call.failed", lambda event: event["item_id"])
        assert ended == calls

    def _count(self, event_type: str, key: Any) -> Counter[str]:
        return Counter(key(event) for event in self.events if event["type"] == event_type)
