"""What the engine hears while a context is held for a tool call; the tests are the worker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
import redis

from engine import messages as m
from realtime import keys, tool_dispatch
from realtime.argument_class import argument_class
from realtime.messages import ToolJob, ToolMessage, ToolPartial, ToolProgress, ToolResult, ToolStarted
from realtime.tool_calls import CLOSE, OPEN
from realtime.tools import CALCULATOR, WAIT
from tests.realtime.scripted_engine import ScriptedHost
from workers.call_record import Holder
from workers.execute import Execution
from workers.registry import TOOLS, Tool
from workers.tool import ToolContext

SERVER_TOOLS = {"type": "mcp", "server_label": "midstream", "require_approval": "never"}
EXPRESSION = "7777+1"
CALL = f'{OPEN}{{"name": "calculator", "arguments": {{"expression": "{EXPRESSION}"}}}}{CLOSE}'
PIECES = ("The first part of the output, ", "and the second part of it, and ")


@dataclass
class Held:
    """A response that waits for a tool, and the worker that runs it."""

    host: ScriptedHost
    response: asyncio.Task[list[dict[str, Any]]]
    hold: m.Hold

    async def say(self, message: ToolMessage) -> None:
        await self.host.post(message)

    async def start(self, attempt: int = 1, worker: str = "worker") -> None:
        await self.say(ToolStarted(self.hold.call, attempt, worker))

    async def stream(self, *pieces: str, attempt: int = 1) -> None:
        """Returns when the engine has been told."""
        start = 0
        for text in pieces:
            await self.say(ToolPartial(self.hold.call, attempt, start, text))
            start += len(text)

    async def finish(self, output: str = "", error: str = "", attempt: int = 1) -> list[dict[str, Any]]:
        await self.say(ToolResult(self.hold.call, attempt, output, error, 1.0, 2.0))
        return await self.response

    @property
    def tokens(self) -> list[int]:
        return self.host.engine.contexts[self.hold.context]

    def hints(self) -> list[tuple[str, float | None]]:
        events = self.host.engine.of_kind(m.ToolEvent)
        return [(event.state, event.expected_s) for event in events if event.call == self.hold.call]


Begin = Callable[[], Awaitable[Held]]


@pytest.fixture
async def begin(scripted: ScriptedHost) -> Begin:
    """Asks something that the model calls a tool for."""
    await scripted.open_session()
    midstream = {"events": ["tool", "kv"], "strategy": "off"}
    await scripted.send("session.update", session={"type": "realtime", "tools": [SERVER_TOOLS], "midstream": midstream})
    await scripted.events_until("session.updated")

    async def hold() -> Held:
        scripted.say(CALL)
        scripted.say("Done.")
        known = len(scripted.engine.of_kind(m.Hold))
        response = asyncio.create_task(scripted.ask("How much?"))
        await scripted.engine.until(lambda: len(scripted.engine.of_kind(m.Hold)) > known)
        return Held(scripted, response, scripted.engine.of_kind(m.Hold)[-1])

    return hold


def contains(tokens: list[int], part: list[int]) -> bool:
    return any(tokens[i : i + len(part)] == part for i in range(len(tokens)))


async def test_the_engine_hears_what_kind_of_call_it_waits_for_and_none_of_its_words(begin: Begin) -> None:
    held = await begin()
    assert (held.hold.reason, held.hold.tool, held.hold.argument_class) == ("tool", "calculator", "expression/3")
    assert held.hold.call
    await held.start()
    await held.finish("7778")
    said = [held.hold, *held.host.engine.of_kind(m.ToolEvent)]
    assert EXPRESSION.encode() not in m.encode_commands(said)


async def test_start_progress_and_end_of_the_tool_are_passed_on_once(begin: Begin) -> None:
    held = await begin()
    for _ in range(2):
        await held.start()
        await held.say(ToolProgress(held.hold.call, 1, 1.0, 4.0))
    await held.say(ToolProgress(held.hold.call, 1, 2.0))
    await held.finish("7778")
    (started, _), (progress, remaining), (finished, _) = held.hints()
    assert (started, progress, finished) == ("started", "progress", "finished")
    assert remaining is not None
    assert remaining >= 0
    commands = held.host.engine.commands
    last = max(i for i, command in enumerate(commands) if isinstance(command, m.ToolEvent))
    assert last < next(i for i, command in enumerate(commands) if isinstance(command, m.Resume))


async def test_a_failed_tool_is_a_failed_call(begin: Begin) -> None:
    held = await begin()
    await held.finish(error="no")
    assert held.hints() == [("failed", None)]


async def test_a_cancelled_response_cancels_the_call(begin: Begin) -> None:
    held = await begin()
    await held.start()
    await held.host.engine.until(lambda: len(held.hints()) == 1)
    await held.host.send("response.cancel")
    await held.response
    await held.host.engine.until(lambda: len(held.hints()) == 2)
    assert held.hints()[-1] == ("cancelled", None)


@pytest.mark.parametrize("output", ["".join(PIECES) + "so on.", PIECES[0] + "but no more.", "Something else.", ""])
async def test_output_is_read_while_the_tool_runs_and_the_prompt_is_that_of_the_result(
    begin: Begin, output: str
) -> None:
    held = await begin()
    await held.finish(output)
    expected = held.host.engine.prompts[-1]
    read = await begin()
    await read.start()
    before = len(read.tokens)
    await read.stream(*PIECES)
    fmt = read.host.format
    await read.host.engine.until(lambda: contains(read.tokens[before:], fmt.text(" second part")))
    events = await read.finish(output)
    prompt = read.host.engine.prompts[-1]
    # The second turn stands behind the first one.
    tail = len(fmt.tool_result(output)) + len(fmt.assistant_open)
    assert prompt[-tail:] == expected[-tail:]
    assert prompt[-tail:] == [*fmt.tool_result(output), *fmt.assistant_open]
    steps = [event for event in events if event["type"] == "midstream.tool.progress"]
    assert [step["partial"] for step in steps] == [
        {"start": 0, "text": PIECES[0]},
        {"start": len(PIECES[0]), "text": PIECES[1]},
    ]


async def test_what_was_read_is_computed_once(begin: Begin) -> None:
    held = await begin()
    await held.stream(*PIECES)
    await held.finish("".join(PIECES) + "so on.")
    assert held.host.engine.of_kind(m.Truncate) == []
    (resumed,) = held.host.engine.of_kind(m.Resume)
    assert len(resumed.tokens) < len(held.host.format.tool_result("".join(PIECES)))


async def test_pieces_that_come_twice_or_after_a_gap_harm_nothing(begin: Begin) -> None:
    held = await begin()
    await held.stream(*PIECES)
    await held.say(ToolPartial(held.hold.call, 1, len(PIECES[0]), PIECES[1]))
    await held.say(ToolPartial(held.hold.call, 1, 10_000, "far away"))
    await held.finish("".join(PIECES))
    fmt = held.host.format
    assert contains(held.host.engine.prompts[-1], fmt.tool_result("".join(PIECES)))


async def test_the_output_of_a_lost_attempt_is_forgotten(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_dispatch, "WORKER_CHECK_S", 0.02)
    held = await begin()
    before = list(held.tokens)
    await held.stream(*PIECES)
    await held.host.engine.until(lambda: len(held.tokens) > len(before))
    await held.start(worker="gone")
    record = keys.tool(held.hold.call)
    async with asyncio.timeout(10):
        while await held.host.node.redis.hget(record, "attempt_sent") != b"2":  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await held.start(attempt=2)
    await held.stream("Of a lost attempt, which nobody may read.", attempt=1)
    close = held.host.format.assistant_close
    await held.host.engine.until(lambda: held.tokens in (before, before + close))
    await held.finish("7778", attempt=2)
    assert not contains(held.host.engine.prompts[-1], held.host.format.text(" first part of"))


async def test_a_tool_of_a_worker_streams(begin: Begin, client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker's own code, between the host's queue and its inbox."""

    def streaming(arguments: dict[str, Any], context: ToolContext) -> str:
        context.partial(PIECES[0] + PIECES[1])
        return PIECES[0] + PIECES[1] + "so on."

    monkeypatch.setitem(TOOLS, "calculator", Tool(CALCULATOR, streaming))
    held = await begin()
    job = ToolJob(held.hold.call, 1, "node-1", "calculator", msgspec.json.encode({"expression": "1"}).decode(), 0.0)
    Execution(client, job, Holder("worker", 1)).run()
    events = await held.response
    (call,) = [item for item in events[-1]["response"]["output"] if item["type"] == "mcp_call"]
    assert call["output"] == "".join(PIECES) + "so on."
    appended = [token for append in held.host.engine.of_kind(m.Append) for token in append.tokens]
    assert contains(appended, held.host.format.text(" first part of"))
    assert [state for state, _ in held.hints()] == ["started", "finished"]


async def test_redis_and_the_client_are_told_where_the_kv_is(begin: Begin) -> None:
    held = await begin()
    context, engine = held.hold.context, held.host.engine
    moves = [
        m.KvMoved(context, "device", 64, 256, "preserve", "tool"),
        m.KvMoved(context, "host", 16, 64, "swap", "policy"),
        m.KvMoved(context, "host", 48, 192, "swap", "policy"),
        m.KvMoved(context, "device", 64, 256, "restore", "policy"),
        m.KvMoved(context, "none", 16, 64, "discard", "memory pressure"),
        m.KvMoved(context, "none", 48, 192, "discard", "memory pressure"),
    ]
    records = []
    for move in moves:
        engine.emit(move)
        records.append(await kv_record(held, move.decision, move.tokens))
    assert records == [
        ("device", "64"),
        ("partial", "64"),
        ("host", "64"),
        ("device", "64"),
        ("partial", "48"),
        ("none", "0"),
    ]
    events = await held.finish("7778")
    states = [(event["state"], event["tokens"]) for event in events if event["type"] == "midstream.kv.state"]
    assert states == [
        ("preserved", 64),
        ("swapped", 16),
        ("swapped", 48),
        ("restored", 64),
        ("discarded", 16),
        ("discarded", 48),
    ]


async def kv_record(held: Held, decision: str, moved: int) -> tuple[str, str]:
    """Location and tokens in Redis once the client has heard of the move."""
    session = "session"
    log = keys.session_log(session)
    async with asyncio.timeout(10):
        while True:
            entries: Any = await held.host.node.redis.xrevrange(log, count=1)
            event = msgspec.json.decode(next(iter(entries[0][1].values())))
            kind = (event["type"], event.get("tokens"), event.get("state", "")[:4])
            if kind == ("midstream.kv.state", moved, decision[:4]):
                break
            await asyncio.sleep(0.01)
    fields: Any = await held.host.node.redis.hgetall(keys.kv(session))
    return fields[b"location"].decode(), fields[b"tokens"].decode()


def test_calls_are_alike_by_parameters_and_size() -> None:
    assert argument_class(WAIT, '{"seconds": 5}') == argument_class(WAIT, '{"seconds": 9}') == "seconds/2"
    assert argument_class(CALCULATOR, '{"expression": "1+1", "my secret": 1}') == "expression/3"
    assert argument_class(CALCULATOR, "x" * 300) == "/5"
    assert argument_class(CALCULATOR, "[" * 100_000) == "/9"


@pytest.mark.parametrize(
    ("arguments", "seconds"),
    [
        ('{"seconds": 2.5}', 2.5),
        ('{"seconds": -1}', 0.0),
        ('{"seconds": 1e400}', 60.0),
        ('{"seconds": NaN}', 0.0),
        (f'{{"seconds": {10**400}}}', 60.0),
        ('{"seconds": "2"}', None),
        ("{}", None),
        ("[]", None),
        ("{", None),
    ],
)
def test_a_tool_that_can_tell_says_how_long_it_will_take(arguments: str, seconds: float | None) -> None:
    assert WAIT.expected_s(arguments) == seconds
    assert CALCULATOR.expected_s(arguments) is None
