"""A host whose engine says what the test wants: the real session host and Redis, and a script on the engine socket."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from engine import messages as m
from realtime import inbox
from realtime.chat_format import ChatFormat
from realtime.engine_link import EngineLink
from realtime.host import Host
from realtime.messages import Attach, ClientEvent, Completion, CompletionPart, Delivery, InboxMessage
from realtime.node import Node
from realtime.outbox import OutboxReader
from realtime.publisher import Publisher
from realtime.redis_connection import connect
from realtime.settings import RealtimeSettings
from realtime.tasks import cancel_and_wait
from realtime.tool_dispatch import ToolDispatch
from realtime.turn_metrics import TurnMetrics

LIMIT_S = 20.0
MODEL = m.ModelInfo("scripted", "transformers", "fp32", 2048, 16, 128, 4)


@dataclass
class Script:
    """One generation: batches of tokens and how it ends; None = not before it is cancelled."""

    batches: list[list[int]]
    reason: m.FinishReason | None = "stop"


@dataclass
class ScriptedEngine:
    """Keeps every command; `prompts` has the tokens of each generation's context as it began."""

    scripts: list[Script] = field(default_factory=list)
    commands: list[m.Command] = field(default_factory=list)
    prompts: list[list[int]] = field(default_factory=list)
    contexts: dict[int, list[int]] = field(default_factory=dict)
    running: dict[int, int] = field(default_factory=dict)
    writer: asyncio.StreamWriter | None = None
    _obeyed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Returns when what the host asked for so far makes `condition` true."""
        async with asyncio.timeout(LIMIT_S), self._obeyed:
            await self._obeyed.wait_for(condition)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        writer.write(m.encode_output(m.Ready("epoch", "cpu", "float32", [MODEL])))
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                payload = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
                for command in m.decode_commands(payload):
                    for item in self._obey(command):
                        writer.write(m.encode_output(m.Step(0.0, 0.0, [item])))
                async with self._obeyed:
                    self._obeyed.notify_all()
        writer.close()

    def emit(self, item: m.Item) -> None:
        """Says something unasked."""
        assert self.writer is not None
        self.writer.write(m.encode_output(m.Step(0.0, 0.0, [item])))

    def of_kind(self, kind: type[m.Command]) -> list[Any]:
        return [command for command in self.commands if isinstance(command, kind)]

    def _obey(self, command: m.Command) -> list[m.Item]:
        self.commands.append(command)
        match command:
            case m.Open(context=context):
                self.contexts[context] = []
            case m.Fork(context=context, child=child):
                self.contexts[child] = list(self.contexts[context])
            case m.Append(context=context, tokens=tokens):
                self.contexts[context] += tokens
            case m.Generate(context=context, generation=generation, params=params):
                return self._generate(context, generation, params)
            case m.Cancel(context=context):
                return self._cancel(context)
            case m.Truncate(context=context, length=length):
                items = self._cancel(context)
                del self.contexts[context][length:]
                return items
            case m.Resume(context=context, tokens=tokens, generation=generation, params=params):
                self.contexts[context] += tokens
                return self._generate(context, generation, params) if params is not None else []
            case m.ToolEvent(context=context, call=call, state=state):
                return [m.ToolAck(context, call, state, "accepted", 200)]
            case m.Close(context=context):
                self.running.pop(context, None)
                del self.contexts[context]
        return []

    def _generate(self, context: int, generation: int, params: m.GenerateParams) -> list[m.Item]:
        script = self.scripts.pop(0)
        self.prompts.append(list(self.contexts[context]))
        items: list[m.Item] = []
        for batch in script.batches:
            self.contexts[context] += batch
            scored = [m.TokenLogprobs(-1.0, [(token, -1.0)]) for token in batch if params.top_logprobs is not None]
            items.append(m.Tokens(context, generation, batch, scored))
        if script.reason is None:
            self.running[context] = generation
            return items
        return [*items, self._finished(context, generation, script.reason)]

    def _cancel(self, context: int) -> list[m.Item]:
        generation = self.running.pop(context, None)
        return [] if generation is None else [self._finished(context, generation, "cancelled")]

    def _finished(self, context: int, generation: int, reason: m.FinishReason) -> m.Finished:
        return m.Finished(context, generation, reason, len(self.prompts[-1]), 0, 0, 0.0, 0.0, 0.0)


class ScriptedHost:
    """A running host; the test is its web process."""

    def __init__(self, node: Node, engine: ScriptedEngine) -> None:
        self.node = node
        self.format = node.format
        self.engine = engine
        self._outbox = OutboxReader(node.redis, "web")
        self._unread: list[Delivery] = []

    def say(self, text: str, reason: m.FinishReason | None = "stop", size: int = 1) -> None:
        """What the next generation says, in batches of `size` tokens."""
        tokens = self.format.text(text)
        self.engine.scripts.append(Script([tokens[i : i + size] for i in range(0, len(tokens), size)], reason))

    async def post(self, message: InboxMessage) -> None:
        await inbox.post(self.node.redis, self.node.settings.node_id, message)

    async def deliveries(self) -> AsyncIterator[msgspec.Raw]:
        """What comes for the web process, in order; never waits for ever."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                while self._unread:
                    yield self._unread.pop(0).event
                self._unread = await self._outbox.read(block_ms=100)

    async def complete(self, content: str = "Hi", **fields: Any) -> list[CompletionPart]:
        """The parts of one completion, the last one with the usage or an error."""
        messages = [{"role": "user", "content": content}]
        defaults: dict[str, Any] = {"max_tokens": 64, "sampling": m.Sampling(), "seed": 0, "received_at": 0.0}
        await self.post(Completion("call", "web", messages, **defaults | fields))
        parts: list[CompletionPart] = []
        async for event in self.deliveries():
            parts.append(msgspec.json.decode(event, type=CompletionPart))
            if parts[-1].usage or parts[-1].error_code:
                break
        return parts

    async def open_session(self) -> None:
        await self.post(Attach("session", "socket", "web", "owner"))

    async def send(self, event_type: str, **fields: Any) -> None:
        event = msgspec.Raw(msgspec.json.encode({"type": event_type, **fields}))
        await self.post(ClientEvent("session", "socket", event, 0.0, web="web"))

    async def events_until(self, event_type: str) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = []
        async for raw in self.deliveries():
            events.append(msgspec.json.decode(raw))
            if events[-1]["type"] == event_type:
                break
        return events

    async def ask(self, text: str = "Hi", **response: Any) -> list[dict[str, Any]]:
        """All events from a user's message to the end of the response."""
        await self.send("input_text_buffer.commit", text=text)
        await self.send("response.create", response=response)
        return await self.events_until("response.done")


@contextlib.asynccontextmanager
async def scripted_host(fmt: ChatFormat, redis_url: str, folder: Path) -> AsyncIterator[ScriptedHost]:
    socket = folder / "engine.sock"
    settings = RealtimeSettings(redis_url=redis_url, engine_socket=socket, max_output_tokens=64)
    client = connect(redis_url)
    publisher = Publisher(client)
    hosts: list[Host] = []
    link = EngineLink(socket, lambda: hosts[0].engine_changed())
    tools = ToolDispatch(client, publisher, settings)
    node = Node(settings, "scripted", client, publisher, link, fmt, tools, TurnMetrics("node-1"))
    hosts.append(Host(node))
    engine = ScriptedEngine()
    async with await asyncio.start_unix_server(engine.serve, socket):
        running = asyncio.create_task(hosts[0].run())
        try:
            yield ScriptedHost(node, engine)
        finally:
            await cancel_and_wait([running])
            await hosts[0].close()
            if link.current is not None:
                await link.current.aclose()
            await client.aclose()
