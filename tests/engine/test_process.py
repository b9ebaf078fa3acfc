"""The engine process and its client over the real socket, with a tiny random model."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine import messages as m
from engine.client import ContextHandle, EngineClient, EngineError, EngineLost, Generation
from tests.engine.driver import reference_greedy

PROMPT = [5, 17, 3, 88, 41, 9, 9, 30, 2, 64, 71, 12, 50]
LIMIT = 30.0


class Engine:
    """A running engine process with a tiny model and a KV pool of 128 blocks."""

    def __init__(self, model: Path, path: Path, **more: str) -> None:
        settings = {"MIDSTREAM_MODEL": str(model), "MIDSTREAM_KV_TOKENS": "2048", "MIDSTREAM_DTYPE": "float32"} | more
        self.path = path
        self.process = subprocess.Popen(
            [sys.executable, "-m", "engine.process", "--socket", str(path)],
            cwd=Path(__file__).parents[2],
            env=os.environ | settings,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stderr is not None
        log = []
        for line in self.process.stderr:
            log.append(line)
            if "listening" in line:
                return
        raise AssertionError(f"the engine did not start: {log}")

    def stop(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=LIMIT)


@pytest.fixture(scope="module")
def engine(llama_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    engine = Engine(llama_folder, tmp_path_factory.mktemp("engine") / "engine.sock")
    yield engine
    engine.stop()


@pytest.fixture
def own_engine(llama_folder: Path, tmp_path: Path) -> Iterator[Engine]:
    """For tests that end the process."""
    engine = Engine(llama_folder, tmp_path / "engine.sock")
    yield engine
    engine.stop()


@pytest.fixture
async def client(engine: Engine) -> AsyncIterator[EngineClient]:
    client = await EngineClient.connect(engine.path, LIMIT)
    yield client
    await client.aclose()


async def collect(generation: Generation) -> list[int]:
    async with asyncio.timeout(LIMIT):
        return [token async for batch in generation for token in batch]


async def first_batch(generation: Generation) -> list[int]:
    async with asyncio.timeout(LIMIT):
        return await anext(generation)


async def all_prefilled(handle: ContextHandle) -> None:
    done = asyncio.Event()
    handle.on_prefilled = lambda item: done.set() if item.kv_tokens == len(handle.tokens) else None
    async with asyncio.timeout(LIMIT):
        await done.wait()


async def gauges(client: EngineClient) -> m.Stats:
    """The next ones."""
    arrived = asyncio.Event()
    client.on_stats = lambda _: arrived.set()
    async with asyncio.timeout(LIMIT):
        await arrived.wait()
    assert client.stats is not None
    return client.stats


async def generates(path: Path) -> bool:
    """Whether a new host gets an answer."""
    client = await EngineClient.connect(path, LIMIT)
    handle = client.open("foreground")
    handle.append(PROMPT)
    tokens = await collect(handle.generate(m.GenerateParams(2)))
    await client.aclose()
    return len(tokens) == 2


async def test_generates_like_transformers_and_mirrors_the_tokens(client: EngineClient, tiny_reference: Any) -> None:
    handle = client.open("foreground")
    handle.append(PROMPT)
    generation = handle.generate(m.GenerateParams(20))
    expected = reference_greedy(tiny_reference, PROMPT, 20)
    assert await collect(generation) == expected
    assert handle.tokens == PROMPT + expected
    assert handle.kv_tokens == len(handle.tokens) - 1
    assert generation.finished is not None
    assert generation.finished.reason == "length"


async def test_ready_describes_the_engine(client: EngineClient) -> None:
    ready = client.ready
    (model,) = ready.models
    assert (ready.dtype, model.max_context, model.block_size, model.kv_blocks) == ("float32", 512, 16, 128)
    assert model.bytes_per_token == 2 * 2 * 2 * 8 * 4
    assert ready.epoch


async def test_gauges_come_while_idle(client: EngineClient) -> None:
    assert (await gauges(client)).blocks_free == 128
    assert (await gauges(client)).contexts == 0


async def test_edits_race_with_generation_and_the_mirror_stays_right(client: EngineClient, tiny_reference: Any) -> None:
    """The engine is ahead of the client when it is told to go back; twenty times."""
    handle = client.open("foreground")
    handle.append(PROMPT)
    for i in range(20):
        stale = handle.generate(m.GenerateParams(400))
        await first_batch(stale)
        wanted = [*handle.tokens[: 10 + i % 7], i, i + 1]
        common = handle.sync(wanted)
        assert common >= 10
        assert handle.tokens == wanted
        assert await collect(handle.generate(m.GenerateParams(3))) == reference_greedy(tiny_reference, wanted, 3)
        assert await collect(stale) is not None
        assert stale.finished is not None
        assert stale.finished.reason == "cancelled"


async def test_cancel_keeps_what_arrived_and_goes_on_from_there(client: EngineClient, tiny_reference: Any) -> None:
    handle = client.open("foreground")
    handle.append(PROMPT)
    generation = handle.generate(m.GenerateParams(400))
    await first_batch(generation)
    handle.cancel()
    kept = handle.tokens[:]
    handle.append([1, 2, 3])
    following = handle.generate(m.GenerateParams(5))
    assert await collect(following) == reference_greedy(tiny_reference, [*kept, 1, 2, 3], 5)
    await collect(generation)
    assert generation.finished is not None
    assert generation.finished.reason == "cancelled"


async def test_fork_of_a_generating_context_starts_from_what_arrived(client: EngineClient, tiny_reference: Any) -> None:
    handle = client.open("foreground")
    handle.append(PROMPT)
    generation = handle.generate(m.GenerateParams(50))
    await first_batch(generation)
    child = handle.fork("background")
    start = child.tokens[:]
    assert await collect(child.generate(m.GenerateParams(5))) == reference_greedy(tiny_reference, start, 5)
    assert len(await collect(generation)) + len(start) >= 50


async def test_hold_and_resume(client: EngineClient, tiny_reference: Any) -> None:
    handle = client.open("foreground")
    handle.append(PROMPT)
    await collect(handle.generate(m.GenerateParams(5)))
    moved: list[m.KvMoved] = []
    handle.on_kv_moved = moved.append
    handle.hold("tool", expected_s=1.0)
    resumed = handle.resume([7, 8], m.GenerateParams(5))
    assert resumed is not None
    prompt = handle.tokens[:]
    assert await collect(resumed) == reference_greedy(tiny_reference, prompt, 5)
    assert [item.decision for item in moved] == ["preserve"]


async def test_the_ledger_shows_which_policy_the_setting_names(llama_folder: Path, tmp_path: Path) -> None:
    held: dict[str, float] = {}
    for policy in ("preserve", "discard"):
        engine = Engine(llama_folder, tmp_path / f"{policy}.sock", MIDSTREAM_INTERCEPTION_POLICY=policy)
        client = await EngineClient.connect(engine.path, LIMIT)
        handle, other = client.open("foreground"), client.open("foreground")
        handle.append(PROMPT * 20)
        await all_prefilled(handle)
        before = (await gauges(client)).memory
        handle.hold("tool")
        other.append([3, 2, 1])
        await collect(other.generate(m.GenerateParams(200)))
        after = (await gauges(client)).memory
        kept, cached = (after[cause] - before[cause] for cause in ("held", "cached"))
        held[policy] = kept / (kept + cached)
        await client.aclose()
        engine.stop()
    assert held["preserve"] > 0.5
    assert held["discard"] < 0.1


@pytest.fixture(params=["swap", "ours"])
def swapping_engine(request: pytest.FixtureRequest, llama_folder: Path, tmp_path: Path) -> Iterator[Engine]:
    """One with a host tier, by policy."""
    settings = {"MIDSTREAM_INTERCEPTION_POLICY": request.param, "MIDSTREAM_HOST_KV_TOKENS": "2048"}
    engine = Engine(llama_folder, tmp_path / "engine.sock", **settings)
    yield engine
    engine.stop()


async def test_a_context_whose_kv_is_all_on_the_host_goes_on_though_nothing_else_runs(
    swapping_engine: Engine, tiny_reference: Any
) -> None:
    client = await EngineClient.connect(swapping_engine.path, LIMIT)
    prompt = PROMPT * 10
    handle, other = client.open("foreground"), client.open("foreground")
    handle.append(prompt)
    await all_prefilled(handle)
    moved: list[m.KvMoved] = []
    handle.on_kv_moved = moved.append
    handle.hold("tool", expected_s=1000.0)
    other.append([3, 2, 1])
    await collect(other.generate(m.GenerateParams(100)))
    assert sum(item.tokens for item in moved if item.location == "host") >= len(prompt)
    resumed = handle.resume([7, 8], m.GenerateParams(5))
    assert resumed is not None
    assert await collect(resumed) == reference_greedy(tiny_reference, [*prompt, 7, 8], 5)
    assert sum(item.tokens for item in moved if item.decision == "restore") >= len(prompt)
    assert resumed.finished is not None
    assert resumed.finished.cached_tokens == len(prompt)
    await client.aclose()


async def test_promotion_and_prefill_hooks(client: EngineClient) -> None:
    handle = client.open("background")
    handle.append(PROMPT * 5)
    handle.priority = "foreground"
    await all_prefilled(handle)
    assert handle.kv_tokens == len(PROMPT) * 5
    generation = handle.generate(m.GenerateParams(1))
    await collect(generation)
    assert generation.finished is not None
    assert generation.finished.cached_tokens == len(PROMPT) * 5


async def test_refusals_are_errors_at_the_call_or_in_the_generation(client: EngineClient) -> None:
    handle = client.open("foreground")
    with pytest.raises(EngineError, match="limit is 512"):
        handle.append([1] * 513)
    handle.append(PROMPT)
    with pytest.raises(EngineError) as refused:
        await collect(handle.generate(m.GenerateParams(0)))
    assert refused.value.code == "invalid_value"
    assert len(await collect(handle.generate(m.GenerateParams(2)))) == 2
    handle.append([10_000])
    with pytest.raises(EngineError, match="token ids"):
        await collect(handle.generate(m.GenerateParams(2)))
    with pytest.raises(EngineError, match="token ids"):
        handle.append([1])
    handle.close()


async def test_closing_while_generating_frees_everything(client: EngineClient) -> None:
    handle = client.open("foreground")
    handle.append(PROMPT)
    generation = handle.generate(m.GenerateParams(400))
    await first_batch(generation)
    handle.close()
    await collect(generation)
    stats = await gauges(client)
    assert (stats.contexts, stats.blocks_free) == (0, 128)


async def test_a_gone_host_leaves_no_contexts(engine: Engine) -> None:
    first = await EngineClient.connect(engine.path, LIMIT)
    for _ in range(5):
        handle = first.open("foreground")
        handle.append(PROMPT)
        generation = handle.generate(m.GenerateParams(400))
    await first_batch(generation)
    await first.aclose()
    second = await EngineClient.connect(engine.path, LIMIT)
    stats = await gauges(second)
    assert (stats.contexts, stats.blocks_free) == (0, 128)
    assert second.ready.epoch == first.ready.epoch
    await second.aclose()


async def test_a_new_host_replaces_the_old(engine: Engine) -> None:
    first = await EngineClient.connect(engine.path, LIMIT)
    assert await generates(engine.path)
    async with asyncio.timeout(LIMIT):
        await first.lost.wait()
    with pytest.raises(EngineLost):
        first.open("foreground")
    await first.aclose()


async def test_a_killed_engine_ends_generations_with_an_error(own_engine: Engine) -> None:
    client = await EngineClient.connect(own_engine.path, LIMIT)
    handle = client.open("foreground")
    handle.append(PROMPT)
    generation = handle.generate(m.GenerateParams(400))
    await first_batch(generation)
    own_engine.process.kill()
    with pytest.raises(EngineLost):
        await collect(generation)
    assert client.lost.is_set()
    for verb in (lambda: handle.append([1]), handle.cancel, lambda: client.open("foreground")):
        with pytest.raises(EngineLost):
            verb()
    handle.close()
    await client.aclose()


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
async def test_signals_end_the_process_cleanly(own_engine: Engine, signal_number: int) -> None:
    client = await EngineClient.connect(own_engine.path, LIMIT)
    own_engine.process.send_signal(signal_number)
    async with asyncio.timeout(LIMIT):
        await client.lost.wait()
    assert own_engine.process.wait(LIMIT) == 0
    assert not own_engine.path.exists()
    await client.aclose()


HOSTILE_FRAMES = {
    "garbage": b"GET / HTTP/1.1\r\nHost: engine\r\n\r\n",
    "giant length": b"\xff\xff\xff\xff",
    "not msgpack": b"\x00\x00\x00\x04\xc1\xc1\xc1\xc1",
    "wrong shape": b"\x00\x00\x00\x01\x05",
    "deep nesting": (100_000).to_bytes(4, "big") + b"\x91" * 100_000,
    "unknown verb": m._frame(m._encoder.encode([{"type": "format_disk"}])),
    "wrong field": m._frame(m._encoder.encode([{"type": "append", "context": 1, "tokens": ["a"]}])),
}


@pytest.mark.parametrize("name", sorted(HOSTILE_FRAMES))
async def test_hostile_frames_cost_only_the_connection(engine: Engine, name: str) -> None:
    reader, writer = await asyncio.open_unix_connection(str(engine.path))
    writer.write(HOSTILE_FRAMES[name])
    async with asyncio.timeout(LIMIT):
        assert await reader.read(-1)
    writer.close()
    assert await generates(engine.path)


async def test_a_frame_may_come_in_pieces(engine: Engine) -> None:
    reader, writer = await asyncio.open_unix_connection(str(engine.path))
    for byte in m.encode_commands([m.Cancel(1), m.Append(9, [1])]):
        writer.write(bytes([byte]))
        await writer.drain()
    outputs: list[m.Output] = []
    async with asyncio.timeout(LIMIT):
        while not any(isinstance(output, m.Step) for output in outputs):
            size = int.from_bytes(await reader.readexactly(4), "big")
            outputs.append(m.decode_output(await reader.readexactly(size)))
    writer.close()
    await writer.wait_closed()
    assert isinstance(outputs[0], m.Ready)


async def test_no_engine_is_reported_within_the_limit(tmp_path: Path) -> None:
    with pytest.raises(EngineLost):
        await EngineClient.connect(tmp_path / "nobody.sock", 1.0)
    silent = socket.socket(socket.AF_UNIX)
    silent.bind(str(tmp_path / "silent.sock"))
    silent.listen()
    with pytest.raises(EngineLost):
        await EngineClient.connect(tmp_path / "silent.sock", 0.05)
    silent.close()
