"""The workload on Midstream's engine process with real weights, over its socket.

Prompts and what tools return are random tokens, as many as the trace says; as many are generated as it says, whatever
they are; tools are timers.
"""

from __future__ import annotations

import random
import select
import socket
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bench.engine_process import EngineFailed, EngineProcess, Meter
from bench.interception.figures import Memory, Outcome, memory_of
from bench.interception.host import Host, RequestFailed
from bench.interception.workload import Request
from engine import messages as m

START_LIMIT_S = 300.0
FIRST_TEXT_TOKEN, LAST_TEXT_TOKEN = 300, 40_000
_READ_SIZE = 1 << 20
_SILENCE_LIMIT_S = 30.0


@dataclass(frozen=True, slots=True)
class Replayed:
    """What was seen of a workload in `window_s`. `others` is the share of the processors that anything else took."""

    outcomes: list[Outcome]
    window_s: float
    memory: Memory
    others: float


class Replayer(Protocol):
    """A loaded engine."""

    version: str
    process: EngineProcess

    def replay(self, requests: Sequence[Request], seed: int, limit_s: float) -> Replayed:
        """Runs the requests to the end, or for `limit_s`. Raises `EngineFailed`."""
        ...

    def close(self) -> None: ...


def random_text(seed: int, index: int, turn: int, count: int) -> list[int]:
    """`count` tokens that nobody else has in a cache."""
    rng = random.Random(f"{seed} {index} {turn}")
    return [rng.randrange(FIRST_TEXT_TOKEN, LAST_TEXT_TOKEN) for _ in range(count)]


class MidstreamReplayer:
    """See `Replayer`."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        """`settings` are the engine's environment. Raises `EngineFailed`."""
        # A Unix socket's path has to be short.
        self._folder = tempfile.TemporaryDirectory(prefix="ms-")
        path = Path(self._folder.name) / "engine.sock"
        self.process = EngineProcess([sys.executable, "-m", "engine.process", "--socket", str(path)], settings)
        try:
            self.process.wait_for("listening on", START_LIMIT_S)
            self._wire = _Wire(path)
            ready = self._ready()
        except OSError as error:
            failure = self.process.failure(str(error))
            self._end()
            raise failure from error
        except EngineFailed:
            self._end()
            raise
        model = ready.models[0]
        self.version = f"{model.runner} runner, {model.weights}"

    def replay(self, requests: Sequence[Request], seed: int, limit_s: float) -> Replayed:
        meter = Meter(self.process)
        host = Host(
            requests, lambda i, turn: random_text(seed, i, turn, requests[i].turns[turn].append), self._wire.put
        )
        try:
            before = self._stats()
            window_s = self._play(host, limit_s)
            memory = _between(before, self._stats())
        except (OSError, RequestFailed) as error:
            raise self.process.failure(str(error) or "time-out") from error
        return Replayed(host.outcomes, window_s, memory, meter.others())

    def close(self) -> None:
        self._wire.close()
        self._end()

    def _end(self) -> None:
        self.process.end()
        self._folder.cleanup()

    def _ready(self) -> m.Ready:
        while True:
            for output in self._wire.exchange(_SILENCE_LIMIT_S):
                if isinstance(output, m.Ready):
                    return output

    def _play(self, host: Host, limit_s: float) -> float:
        """Returns how many seconds it took."""
        started = time.perf_counter()
        while True:
            now = time.perf_counter() - started
            if host.is_done or now >= limit_s:
                return now
            host.deliver(now)
            due = limit_s if host.next_s is None else min(host.next_s, limit_s)
            for output in self._wire.exchange(max(due - now, 0.0)):
                for item in output.items if isinstance(output, m.Step) else ():
                    host.take(item, time.perf_counter() - started)

    def _stats(self) -> m.Stats:
        """The next gauges, which come twice a second."""
        asked = time.time()
        while True:
            for output in self._wire.exchange(_SILENCE_LIMIT_S):
                if isinstance(output, m.Stats) and output.at >= asked:
                    return output


def _between(before: m.Stats, after: m.Stats) -> Memory:
    account = {cause: seconds - before.memory.get(cause, 0.0) for cause, seconds in after.memory.items()}
    return memory_of(account, after.recomputed_tokens - before.recomputed_tokens)


class _Wire:
    """The engine's socket. Raises `OSError` when the engine is gone or silent."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(_SILENCE_LIMIT_S)
        self._received = bytearray()
        self._unsent: list[m.Command] = []
        self._last = time.monotonic()
        self._socket.connect(str(path))

    def put(self, command: m.Command) -> None:
        """Sends it with the next `exchange`."""
        self._unsent.append(command)

    def exchange(self, limit_s: float) -> list[m.Output]:
        """Sends, then waits at most `limit_s` for something; returns what has arrived whole."""
        if self._unsent:
            self._socket.sendall(m.encode_commands(self._unsent))
            self._unsent.clear()
        readable, _, _ = select.select([self._socket], [], [], min(limit_s, _SILENCE_LIMIT_S))
        if readable:
            data = self._socket.recv(_READ_SIZE)
            if not data:
                raise ConnectionError("the engine closed the connection")
            self._received += data
            self._last = time.monotonic()
        elif time.monotonic() - self._last > _SILENCE_LIMIT_S:
            raise TimeoutError(f"nothing from the engine for {_SILENCE_LIMIT_S:.0f} s")
        return self._take()

    def close(self) -> None:
        self._socket.close()

    def _take(self) -> list[m.Output]:
        outputs, at = [], 0
        while len(self._received) >= at + 4:
            end = at + 4 + int.from_bytes(self._received[at : at + 4], "big")
            if len(self._received) < end:
                break
            outputs.append(m.decode_output(bytes(self._received[at + 4 : end])))
            at = end
        del self._received[:at]
        return outputs
