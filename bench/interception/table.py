"""Runs as a table for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

_HEADINGS = ("policy", "rate", "done/s", "s/token p50", "p90", "p99", "TTFT p50", "waste", "recomputed")


def table_of(runs: Sequence[dict[str, Any]], caption: str) -> Table:
    """One row for each run."""
    table = Table(*_HEADINGS, caption=f"s/token: without the tools. {caption}", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for one in runs:
        latencies = [_seconds(one[f"normalized_latency_p{share}_s"]) for share in (50, 90, 99)]
        rest = [_seconds(one["ttft_p50_s"]), f"{one['waste_share']:.2%}", str(one["recomputed_tokens"])]
        table.add_row(one["policy"], f"{one['rate']:g}", f"{one['completed_per_s']:.3f}", *latencies, *rest)
    return table


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
