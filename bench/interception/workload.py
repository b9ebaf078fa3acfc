"""Requests whose answers are interrupted by tool calls, as a trace file has them: token counts and durations, no text.

A trace is JSON lines, one request each: its `type` and `segments` of `prompt_tokens`, `completion_tokens` and, where a
tool is called at the end of a segment, `tool`, `api_time_s` and `api_return_tokens`. Only the first segment's
`prompt_tokens` count: later ones are the same text tokenised anew. A call behind the last segment has no part in it.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import msgspec

_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 24)]
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e6)]


DEFAULT_TRACE = Path(__file__).parent / "infercept_mixed_numeric.jsonl"
"""InferCept's mixed workload of six augmentations, numbers only; derived from mars-repository/mars-codebase
(Apache-2.0)."""


class TraceError(Exception):
    """A trace file that cannot be used; says where it is wrong."""


@dataclass(frozen=True, slots=True)
class Turn:
    """`append` tokens are added (the prompt, or what the tool returned), then `generate` tokens are generated; then
    `tool` is called and lasts `tool_s`, unless this turn is the last one."""

    append: int
    generate: int
    tool: str = ""
    tool_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Request:
    """A request of a trace, or one that arrives `arrival_s` after the start."""

    kind: str
    turns: tuple[Turn, ...]
    number: int = 0
    arrival_s: float = 0.0

    @property
    def output_tokens(self) -> int:
        """What is generated in all turns."""
        return sum(turn.generate for turn in self.turns)

    @property
    def length(self) -> int:
        """Of its context at the end, in tokens."""
        return sum(turn.append + turn.generate for turn in self.turns)

    @property
    def tool_s(self) -> float:
        """How long it waits for its tools in all."""
        return sum(turn.tool_s for turn in self.turns)


@dataclass(frozen=True, slots=True)
class Scale:
    """Factors for durations and for token counts, so that a trace fits a smaller machine or model."""

    seconds: float = 1.0
    tokens: float = 1.0

    def turn(self, turn: Turn) -> Turn:
        """At least one token stays of what has any."""
        return Turn(self._count(turn.append), self._count(turn.generate), turn.tool, turn.tool_s * self.seconds)

    def _count(self, tokens: int) -> int:
        return max(round(tokens * self.tokens), min(tokens, 1))


class _Segment(msgspec.Struct):
    prompt_tokens: _Count
    completion_tokens: Annotated[int, msgspec.Meta(ge=1, le=1 << 24)]
    tool: str = ""
    api_time_s: _Seconds | None = None
    api_return_tokens: Annotated[int, msgspec.Meta(ge=-(1 << 24), le=1 << 24)] = 0


class _Line(msgspec.Struct):
    type: str
    segments: Annotated[list[_Segment], msgspec.Meta(min_length=1)]


def load_trace(file: Path, scale: Scale = Scale()) -> list[Request]:
    """The requests of a trace file. Raises `TraceError`."""
    try:
        lines = file.read_bytes().splitlines()
    except OSError as error:
        raise TraceError(f"{file}: {error.strerror}") from error
    requests = [_read(line, f"{file}, line {n}", scale) for n, line in enumerate(lines, 1) if line.strip()]
    if not requests:
        raise TraceError(f"{file}: there is no request in it")
    return requests


def sample(trace: Sequence[Request], rate: float, seed: int, *, seconds: float) -> list[Request]:
    """Poisson arrivals, `rate` a second for `seconds`: requests of the trace, drawn with replacement."""
    return list(itertools.takewhile(lambda request: request.arrival_s < seconds, _arrivals(trace, rate, seed)))


def sample_count(trace: Sequence[Request], rate: float, seed: int, *, count: int) -> list[Request]:
    """The first `count` of the same."""
    return list(itertools.islice(_arrivals(trace, rate, seed), count))


def _arrivals(trace: Sequence[Request], rate: float, seed: int) -> Iterator[Request]:
    rng, at = random.Random(seed), 0.0
    for number in itertools.count():
        at += rng.expovariate(rate)
        yield replace(rng.choice(trace), number=number, arrival_s=at)


def _read(line: bytes, where: str, scale: Scale) -> Request:
    try:
        read = msgspec.json.decode(line, type=_Line)
    except msgspec.MsgspecError as error:
        raise TraceError(f"{where}: {error}") from error
    *calling, last = read.segments
    if any(segment.api_time_s is None for segment in calling):
        raise TraceError(f"{where}: a segment before the last one has no api_time_s")
    # The released file has a few calls that return less than nothing, because text was tokenised anew.
    returned = [read.segments[0].prompt_tokens, *(max(segment.api_return_tokens, 0) for segment in calling)]
    if not returned[0]:
        raise TraceError(f"{where}: the first segment has no prompt")
    turns = [
        Turn(append, segment.completion_tokens, segment.tool, segment.api_time_s or 0.0)
        for append, segment in zip(returned, calling, strict=False)
    ]
    turns.append(Turn(returned[-1], last.completion_tokens))
    return Request(read.type, tuple(scale.turn(turn) for turn in turns))
