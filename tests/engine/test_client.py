from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from engine import messages as m
from engine.client import EngineClient, EngineError

MODEL = m.ModelInfo("model", "transformers", "fp32", 64, 16, 8, 4)
LONG = m.ModelInfo("model", "transformers", "fp32", 128, 16, 8, 4)
READY = m.Ready("epoch", "cpu", "float32", [MODEL])
LIMIT_S = 30.0


async def test_a_generation_whose_step_failed_raises_instead_of_looking_complete(tmp_path: Path) -> None:
    async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(m.encode_output(READY))
        await reader.read(1)
        failed = m.Finished(1, 1, "failed", 1, 0, 0, 0.0, 0.0, 0.0)
        writer.write(m.encode_output(m.Step(0.0, 0.0, [failed])))
        writer.close()

    server = await asyncio.start_unix_server(engine, tmp_path / "engine.sock")
    async with server, asyncio.timeout(LIMIT_S):
        client = await EngineClient.connect(tmp_path / "engine.sock", LIMIT_S)
        context = client.open("foreground")
        context.append([1])
        with pytest.raises(EngineError) as raised:
            await anext(context.generate(m.GenerateParams(max_tokens=1)))
        await client.aclose()
    assert raised.value.code == "engine_unavailable"


async def mirror(tmp_path: Path, *items: m.Item) -> list[tuple[int, int]]:
    """Tokens on the device and on the host as the mirror of a context of 70 tokens sees them, after each item."""

    async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(m.encode_output(m.Ready("epoch", "cpu", "float32", [LONG])))
        await reader.read(1)
        for item in items:
            writer.write(m.encode_output(m.Step(0.0, 0.0, [item])))
        writer.close()

    server = await asyncio.start_unix_server(engine, tmp_path / "engine.sock")
    async with server, asyncio.timeout(LIMIT_S):
        client = await EngineClient.connect(tmp_path / "engine.sock", LIMIT_S)
        context = client.open("foreground")
        context.append(range(70))
        seen: list[tuple[int, int]] = []

        def look(item: m.KvMoved | m.Prefilled) -> None:
            seen.append((context.kv_tokens, context.host_tokens))

        context.on_kv_moved = context.on_prefilled = look
        await client.lost.wait()
        await client.aclose()
    return seen


def moved(location: m.KvLocation, tokens: int, decision: m.KvDecision) -> m.KvMoved:
    return m.KvMoved(1, location, tokens, tokens, decision, "policy")


async def test_the_mirror_follows_kv_to_the_host_and_back(tmp_path: Path) -> None:
    items = [
        moved("device", 70, "preserve"),
        moved("host", 16, "swap"),  # the tail: one block of 6 tokens
        moved("host", 64, "swap"),
        moved("device", 16, "restore"),
        moved("device", 64, "restore"),
    ]
    assert await mirror(tmp_path, *items) == [(70, 0), (64, 16), (0, 70), (16, 64), (70, 0)]


async def test_the_mirror_forgets_what_is_dropped_and_nothing_else(tmp_path: Path) -> None:
    items: list[m.Item] = [
        moved("device", 70, "preserve"),
        moved("none", 32, "discard"),
        moved("host", 32, "swap"),
        moved("none", 32, "discard"),
        m.Prefilled(1, 70, 70),
        moved("none", 70, "discard"),
    ]
    assert await mirror(tmp_path, *items) == [(70, 0), (48, 0), (16, 32), (0, 16), (70, 0), (0, 0)]


async def test_hints_are_answered(tmp_path: Path) -> None:
    heard: list[m.Command] = []

    async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(m.encode_output(READY))
        heard.extend(m.decode_commands(await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))))
        writer.write(m.encode_output(m.Step(0.0, 0.0, [m.ToolAck(1, "call", "progress", "clipped", 200)])))
        writer.close()

    server = await asyncio.start_unix_server(engine, tmp_path / "engine.sock")
    async with server, asyncio.timeout(LIMIT_S):
        client = await EngineClient.connect(tmp_path / "engine.sock", LIMIT_S)
        context = client.open("foreground")
        acks: list[m.ToolAck] = []
        context.on_tool_ack = acks.append
        context.hold("tool", call="call", tool="search", argument_class="query/3", expected_s=2.0)
        context.tool_event("call", "progress", 1e9)
        await client.lost.wait()
        await client.aclose()
    assert heard[1:] == [
        m.Hold(1, "tool", 2.0, "call", "search", "query/3"),
        m.ToolEvent(1, "call", "progress", 1e9),
    ]
    assert acks == [m.ToolAck(1, "call", "progress", "clipped", 200)]
