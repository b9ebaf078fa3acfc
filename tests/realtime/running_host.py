"""A session host that runs in the test, with a Redis and whatever engine listens on the socket."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec

from engine import messages as m
from realtime import inbox
from realtime.chat_format import ChatFormat
from realtime.conversation import Message
from realtime.engine_link import EngineLink
from realtime.extension_events import EVENTS
from realtime.host import Host
from realtime.messages import Attach, ClientEvent, Completion, CompletionPart, Delivery, Detach, InboxMessage
from realtime.node import Node
from realtime.outbox import OutboxReader
from realtime.publisher import Publisher
from realtime.redis_connection import connect
from realtime.settings import RealtimeSettings
from realtime.tasks import cancel_and_wait
from realtime.tool_dispatch import ToolDispatch
from realtime.turn_metrics import TurnMetrics

LIMIT_S = 20.0


class RunningHost:
    """The test is its web process; it talks to the session that it opened last."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.format = node.format
        self.session = "session"
        self._outbox = OutboxReader(node.redis, "web")
        self._unread: list[Delivery] = []

    async def post(self, message: InboxMessage) -> None:
        await inbox.post(self.node.redis, self.node.settings.node_id, message)

    @property
    def socket(self) -> str:
        return f"socket of {self.session}"

    async def deliveries(self, connection: str = "") -> AsyncIterator[msgspec.Raw]:
        """What comes for the session's socket, or another connection, in order; never waits for ever."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                while self._unread:
                    delivery = self._unread.pop(0)
                    if delivery.connection == (connection or self.socket):
                        yield delivery.event
                self._unread = await self._outbox.read(block_ms=100)

    async def complete(self, content: str = "Hi", **fields: Any) -> list[CompletionPart]:
        """The parts of one completion, the last one with the usage or an error."""
        items = fields.pop("items", None) or [Message("1", "user", (content,))]
        defaults: dict[str, Any] = {"max_tokens": 64, "sampling": m.Sampling(), "seed": 0, "received_at": 0.0}
        await self.post(Completion("call", "web", items, **defaults | fields))
        parts: list[CompletionPart] = []
        async for event in self.deliveries("call"):
            parts.append(msgspec.json.decode(event, type=CompletionPart))
            if parts[-1].usage or parts[-1].error_code:
                break
        return parts

    async def open_session(self, session: str = "session") -> None:
        self.session = session
        await self.post(Attach(session, self.socket, "web", "owner"))

    async def close_socket(self) -> None:
        await self.post(Detach(self.session, self.socket))

    async def configure(self, **fields: Any) -> None:
        await self.send("session.update", session={"type": "realtime", **fields})
        await self.events_until("session.updated")

    async def send(self, event_type: str, **fields: Any) -> None:
        event = msgspec.Raw(msgspec.json.encode({"type": event_type, **fields}))
        await self.post(ClientEvent(self.session, self.socket, event, 0.0, web="web"))

    async def events_until(self, event_type: str) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = []
        async for raw in self.deliveries():
            events.append(msgspec.json.decode(raw))
            check_event(events[-1])
            if events[-1]["type"] == event_type:
                break
        return events

    async def ask(self, text: str = "Hi", **response: Any) -> list[dict[str, Any]]:
        """All events from a user's message to the end of the response."""
        await self.send("input_text_buffer.commit", text=text)
        await self.send("response.create", response=response)
        return await self.events_until("response.done")


def check_event(event: dict[str, Any]) -> None:
    """Events of the extension are as they are published."""
    if event["type"].startswith(("midstream.", "input_text_buffer.")):
        assert not EVENTS[event["type"]].model_validate(event).model_extra


@contextlib.asynccontextmanager
async def running_node(
    fmt: ChatFormat, redis_url: str, socket: Path, model: str, **settings: Any
) -> AsyncIterator[Node]:
    """The host of this node runs until the end."""
    options: dict[str, Any] = {"redis_url": redis_url, "engine_socket": socket, "max_output_tokens": 64} | settings
    chosen = RealtimeSettings(**options)
    client = connect(redis_url)
    publisher = Publisher(client)
    hosts: list[Host] = []
    link = EngineLink(socket, lambda: hosts[0].engine_changed())
    tools = ToolDispatch(client, publisher, chosen)
    node = Node(chosen, model, client, publisher, link, fmt, tools, TurnMetrics("node-1"))
    hosts.append(Host(node))
    running = asyncio.create_task(hosts[0].run())
    try:
        yield node
    finally:
        await cancel_and_wait([running])
        await hosts[0].close()
        if link.current is not None:
            await link.current.aclose()
        await client.aclose()
