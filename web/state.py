"""What the endpoints of one web process share."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Protocol

import redis.asyncio
from starlette.requests import HTTPConnection
from starlette.templating import Jinja2Templates

from web.dashboard import Dashboard
from web.metrics import WebMetrics
from web.nodes import NodeCache
from web.relay import Channel, Relay
from web.settings import WebSettings


class Socket(Protocol):
    """An open realtime connection, as far as changes among the nodes concern it."""

    def nodes_changed(self, lost: set[str], returned: set[str]) -> None: ...


@dataclass
class Web:
    """`id` is new for every process start. `closing` is set when the process begins to stop."""

    id: str
    settings: WebSettings
    redis: redis.asyncio.Redis
    relay: Relay
    nodes: NodeCache
    metrics: WebMetrics
    dashboard: Dashboard
    templates: Jinja2Templates
    static_url: str
    sockets: set[Socket] = field(default_factory=set)
    completions: int = 0
    closing: asyncio.Event = field(default_factory=asyncio.Event)

    def channel(self, last_seq: int = -1) -> Channel:
        return Channel(self.settings.send_queue_events, self.settings.send_queue_bytes, last_seq)


def web_of(connection: HTTPConnection) -> Web:
    """The shared state of the application that serves this request or socket."""
    web: Web = connection.app.state.web
    return web
