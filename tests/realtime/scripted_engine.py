"""A host whose engine says what the test wants: the real session host and Redis, and a script on the engine socket."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine import messages as m
from realtime.chat_format import ChatFormat
from realtime.node import Node
from tests.realtime.running_host import LIMIT_S, RunningHost, running_node

MODEL = m.ModelInfo("scripted", "transformers", "fp32", 2048, 16, 128, 4)


@dataclass
class Script:
    """One generation: batches of tokens and how it ends; None = not before it is cancelled."""

    batches: list[list[int]]
    reason: m.FinishReason | None = "stop"


@dataclass
class ScriptedEngine:
    """Keeps every command; `prompts` has the tokens of each generation's context as it began. `prefills`: it says
    when it has read tokens, which it does at once. Without a script a generation says nothing until cancelled."""

    scripts: list[Script] = field(default_factory=list)
    commands: list[m.Command] = field(default_factory=list)
    prompts: list[list[int]] = field(default_factory=list)
    contexts: dict[int, list[int]] = field(default_factory=dict)
    running: dict[int, int] = field(default_factory=dict)
    writer: asyncio.StreamWriter | None = None
    prefills: bool = False
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
                return self._prefilled(context)
            case m.Generate(context=context, generation=generation, params=params):
                return [*self._prefilled(context), *self._generate(context, generation, params)]
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
        script = self.scripts.pop(0) if self.scripts else Script([], None)
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

    def _prefilled(self, context: int) -> list[m.Item]:
        return [m.Prefilled(context, len(self.contexts[context]), 1)] if self.prefills else []

    def _cancel(self, context: int) -> list[m.Item]:
        generation = self.running.pop(context, None)
        return [] if generation is None else [self._finished(context, generation, "cancelled")]

    def _finished(self, context: int, generation: int, reason: m.FinishReason) -> m.Finished:
        return m.Finished(context, generation, reason, len(self.prompts[-1]), 0, 0, 0.0, 0.0, 0.0)


class ScriptedHost(RunningHost):
    """A running host whose engine says what the test wants."""

    def __init__(self, node: Node, engine: ScriptedEngine) -> None:
        super().__init__(node)
        self.engine = engine

    def say(self, text: str, reason: m.FinishReason | None = "stop", size: int = 1) -> None:
        """What the next generation says, in batches of `size` tokens."""
        tokens = self.format.text(text)
        self.engine.scripts.append(Script([tokens[i : i + size] for i in range(0, len(tokens), size)], reason))


@contextlib.asynccontextmanager
async def scripted_host(fmt: ChatFormat, redis_url: str, folder: Path, **settings: Any) -> AsyncIterator[ScriptedHost]:
    socket = folder / "engine.sock"
    engine = ScriptedEngine()
    async with (
        await asyncio.start_unix_server(engine.serve, socket),
        running_node(fmt, redis_url, socket, "scripted", **settings) as node,
    ):
        yield ScriptedHost(node, engine)
