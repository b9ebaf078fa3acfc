"""Percentiles of what users waited for, from the measured turns. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from realtime.messages import TurnRecord

PERCENTS = (50, 95, 99)


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Nearest rank: the smallest value that at least `percent` % of the values do not exceed, so always a value that
    was really measured. `ordered` ascends and is not empty."""
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def summary(values: Iterable[float]) -> dict[str, float] | None:
    """`{"count", "p50", "p95", "p99"}`, or None when there is nothing to summarise."""
    ordered = sorted(values)
    if not ordered:
        return None
    return {"count": len(ordered), **{f"p{percent}": percentile(ordered, percent) for percent in PERCENTS}}


def first_token_ms(turn: TurnRecord) -> float | None:
    """From commit to the first token; None when either did not happen."""
    return _elapsed_ms(turn.committed_at, turn.first_token_at)


def complete_ms(turn: TurnRecord) -> float | None:
    """From commit to the end of a complete answer; cancelled and failed turns do not count."""
    return _elapsed_ms(turn.committed_at, turn.done_at) if turn.status == "completed" else None


def by_strategy(turns: Iterable[TurnRecord]) -> list[dict[str, Any]]:
    """One row per strategy: `{"strategy", "turns", "ttft", "complete"}`, the latter two summaries in milliseconds."""
    grouped: dict[str, list[TurnRecord]] = {}
    for turn in turns:
        grouped.setdefault(turn.strategy, []).append(turn)
    return [
        {
            "strategy": strategy,
            "turns": len(group),
            "ttft": summary(ms for turn in group if (ms := first_token_ms(turn)) is not None),
            "complete": summary(ms for turn in group if (ms := complete_ms(turn)) is not None),
        }
        for strategy, group in sorted(grouped.items())
    ]


def _elapsed_ms(start: float, end: float) -> float | None:
    return (end - start) * 1000 if start > 0 and end >= start else None
