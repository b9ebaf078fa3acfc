"""What a run of a workload says: how long requests took, how many were completed, and what KV memory was wasted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bench.interception.workload import Request

_SHARES = (50, 90, 99)
_WASTE = ("held", "recompute_own", "recompute_bystanders", "swap_stall")


@dataclass(slots=True)
class Outcome:
    """What became of a request. Times are seconds from its arrival; `end_s` is None if it was not completed."""

    request: Request
    first_token_s: float | None = None
    end_s: float | None = None


@dataclass(frozen=True, slots=True)
class Memory:
    """KV memory of a run: `waste` in token-seconds by cause, of `total` that the pool had."""

    total: float = 0.0
    waste: Mapping[str, float] = field(default_factory=dict)
    recomputed_tokens: int = 0

    @property
    def waste_share(self) -> float:
        return sum(self.waste.values()) / self.total if self.total else 0.0


def memory_of(account: Mapping[str, float], recomputed_tokens: int) -> Memory:
    """From the token-seconds of a ledger (`engine.interception.ledger`) by cause."""
    return Memory(sum(account.values()), {cause: account.get(cause, 0.0) for cause in _WASTE}, recomputed_tokens)


def figures(outcomes: Sequence[Outcome], window_s: float) -> dict[str, Any]:
    """Of requests that were watched for `window_s`. As in InferCept, a request that was not completed counts as if it
    ended with the window, and normalized latency is (end - arrival - tools) / tokens generated; also with the tools."""
    completed = sum(1 for one in outcomes if one.end_s is not None)
    latencies = [_normalized(one, window_s, with_tools=False) for one in outcomes]
    with_tools = [_normalized(one, window_s, with_tools=True) for one in outcomes]
    firsts = [one.first_token_s for one in outcomes if one.first_token_s is not None]
    return {
        "requests": len(outcomes),
        "completed": completed,
        "completed_per_s": completed / window_s if window_s else 0.0,
        **_percentiles("normalized_latency", latencies),
        **_percentiles("normalized_latency_with_tools", with_tools),
        **_percentiles("ttft", firsts),
    }


def by_kind(outcomes: Sequence[Outcome], window_s: float) -> dict[str, dict[str, Any]]:
    """The same of each type of request."""
    kinds = sorted({one.request.kind for one in outcomes})
    return {kind: figures([one for one in outcomes if one.request.kind == kind], window_s) for kind in kinds}


def run_of(
    policy: str, rate: float, outcomes: Sequence[Outcome], window_s: float, memory: Memory, **details: Any
) -> dict[str, Any]:
    """One run, as the files of the benchmarks have it."""
    return {
        "policy": policy,
        "rate": rate,
        **figures(outcomes, window_s),
        "waste_share": memory.waste_share,
        "recomputed_tokens": memory.recomputed_tokens,
        "waste_shares": {cause: part / memory.total for cause, part in memory.waste.items()} if memory.total else {},
        "window_s": window_s,
        **details,
        "types": by_kind(outcomes, window_s),
    }


def _normalized(one: Outcome, window_s: float, *, with_tools: bool) -> float:
    request = one.request
    seconds = one.end_s if one.end_s is not None else max(window_s - request.arrival_s, 0.0)
    return max(seconds - (0.0 if with_tools else request.tool_s), 0.0) / request.output_tokens


def _percentiles(name: str, values: Sequence[float]) -> dict[str, float | None]:
    """Linear between ranks; None of nothing."""
    found = np.percentile(values, _SHARES).tolist() if values else [None] * len(_SHARES)
    return {f"{name}_p{share}_s": value for share, value in zip(_SHARES, found, strict=True)}
