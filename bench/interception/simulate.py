"""`midstream simulate`: policies at several rates in the simulator, one run each."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.interception.figures import run_of
from bench.interception.setting import SETTINGS, Setting
from bench.interception.simulator import Simulation
from bench.interception.workload import DEFAULT_TRACE, Request, load_trace, sample
from engine.interception.policies import POLICIES

UNCHUNKED = ("discard", "improved-discard")
"""Policies that are older than chunked prefill: whole prompts in iterations of their own, as vLLM did then."""
UNCHUNKED_TOKENS = 2048
"""Of such an iteration, for models of 2,048 positions."""


class BadOption(ValueError):
    """Says which, and what there is."""


@dataclass(frozen=True)
class Options:
    """`seconds` of arrivals are watched for as long; `kv_tokens` replaces the pool of the setting."""

    setting: str
    policies: Sequence[str]
    rates: Sequence[float]
    trace: Path = DEFAULT_TRACE
    seconds: float = 1800.0
    seed: int = 1
    kv_tokens: int | None = None
    prefix_cache: bool = False


def run(options: Options, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """All runs. Raises `BadOption`, `TraceError`, and what `Simulation.run` raises."""
    setting = _check(options)
    trace = load_trace(options.trace)
    runs = []
    for rate in options.rates:
        requests = sample(trace, rate, options.seed, seconds=options.seconds)
        for policy in options.policies:
            started = time.perf_counter()
            runs.append(_run(options, setting, policy, rate, requests))
            say(f"{policy} at {rate:g} a second: {time.perf_counter() - started:.0f} s")
    return runs


def _check(options: Options) -> Setting:
    if options.setting not in SETTINGS:
        raise BadOption(f"there is no setting {options.setting}; there are {', '.join(SETTINGS)}")
    for policy in options.policies:
        if policy not in POLICIES:
            raise BadOption(f"there is no policy {policy}; there are {', '.join(POLICIES)}")
    if not all(0 < rate < math.inf for rate in options.rates):
        raise BadOption("a rate is a number of requests a second above 0")
    return SETTINGS[options.setting].with_kv_tokens(options.kv_tokens)


def _run(options: Options, setting: Setting, policy: str, rate: float, requests: Sequence[Request]) -> dict[str, Any]:
    chunked = policy not in UNCHUNKED
    simulation = Simulation(
        setting,
        POLICIES[policy](setting.timing),
        requests,
        step_tokens=setting.timing.saturation_tokens if chunked else UNCHUNKED_TOKENS,
        prefix_cache=options.prefix_cache,
        mixes=chunked,
    )
    simulation.run(options.seconds)
    memory, details = (
        simulation.memory(),
        {"setting": setting.name, "kv_tokens": setting.kv_tokens, "seed": options.seed},
    )
    return run_of(policy, rate, simulation.outcomes, options.seconds, memory, **details)
