from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from engine import messages as m
from engine.client import EngineClient, EngineError

MODEL = m.ModelInfo("model", "transformers", "fp32", 64, 16, 8, 4)
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
