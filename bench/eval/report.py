"""The report as one HTML page that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from bench.eval.charts import Bar, bars, distributions
from bench.eval.log import Outcome, by_variant
from bench.eval.summary import Run

_STYLE = """
:root { color-scheme: light dark; --ink: #1c1c1c; --paper: #fff; --line: #8884; }
@media (prefers-color-scheme: dark) { :root { --ink: #eee; --paper: #1b1b1d; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 2rem auto; max-width: 60rem; padding: 0 1rem; }
table { border-collapse: collapse; display: block; overflow-x: auto; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .7rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
svg { width: 100%; height: auto; font: 12px system-ui, sans-serif; }
svg text { fill: currentColor; }
.grid { stroke: var(--line); } .whisker { stroke: currentColor; stroke-width: 1.5; fill: none; }
"""  # noqa: E501
_COLUMNS: Sequence[tuple[str, str]] = (
    ("questions", "questions"),
    ("accuracy", "accuracy"),
    ("latency_p50_s", "latency p50 s"),
    ("latency_p90_s", "p90"),
    ("latency_p99_s", "p99"),
    ("ttft_p50_s", "first token p50 s"),
    ("reused_share", "reused"),
    ("fresh_tokens_at_send_p50", "fresh tokens at Send"),
    ("output_tokens_p50", "answer tokens"),
    ("notes_per_question", "notes"),
    ("waits_per_question", "waits"),
    ("draft_wasted_tokens_per_question", "wasted draft tokens"),
    ("engine_step_seconds_per_question", "engine s"),
    ("unparsed", "unparsed"),
    ("failed", "failed"),
)
_COMPARED: Sequence[tuple[str, str]] = (
    ("questions", "pairs"),
    ("speedup_p50", "speed-up (medians)"),
    ("speedup_p50_ci95", "95 %"),
    ("latency_difference_s_ci95", "seconds more, 95 %"),
    ("accuracy_difference", "accuracy"),
    ("accuracy_difference_ci95", "95 %"),
    ("only_baseline_right", "only baseline right"),
    ("only_this_right", "only this right"),
    ("mcnemar_p", "McNemar p"),
)


def page(runs: Sequence[Run], outcomes: Sequence[Outcome]) -> str:
    settings = runs[0]["settings"] if runs else {}
    said = ", ".join(f"{name} {value}" for name, value in settings.items())
    series = [
        (variant.label, [one.latency_s for one in rows.values() if one.latency_s is not None])
        for variant, rows in by_variant(outcomes).items()
    ]
    return "\n".join(
        [
            "<!doctype html>",
            f'<html lang="en"><meta charset="utf-8"><title>Midstream evaluation</title><style>{_STYLE}</style>',
            f"<h1>Midstream evaluation</h1><p>{escape(said)}</p>",
            "<h2>Last keystroke to complete answer</h2><p>Median; the line goes on to the 90th percentile.</p>",
            bars([_latency_bar(run) for run in runs], "s"),
            distributions(series, "s"),
            "<h2>Accuracy</h2><p>With its 95 % interval.</p>",
            bars([_accuracy_bar(run) for run in runs], "", 1.0),
            "<h2>Figures</h2>",
            _table(runs, _COLUMNS),
            "<h2>Against the baseline, question by question</h2>",
            _table([{"label": run["label"], **run["against"]} for run in runs if "against" in run], _COMPARED),
            "</html>",
        ]
    )


def _latency_bar(run: Run) -> Bar:
    median, high = run["latency_p50_s"] or 0.0, run["latency_p90_s"] or 0.0
    return Bar(run["label"], median, median, high, f"{median:.2f}")


def _accuracy_bar(run: Run) -> Bar:
    low, high = run["accuracy_ci95"]
    return Bar(run["label"], run["accuracy"], low, high, f"{run['accuracy']:.0%}")


def _table(rows: Sequence[dict[str, Any]], columns: Sequence[tuple[str, str]]) -> str:
    head = "".join(f"<th>{escape(title)}</th>" for title in ("", *(title for _, title in columns)))
    lines = []
    for row in rows:
        cells = [row["label"], *(shown(row.get(name)) for name, _ in columns)]
        lines.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    return f"<table><tr>{head}</tr>{''.join(lines)}</table>"


def shown(value: Any) -> str:
    """A figure as it stands in a table."""
    if value is None:
        return ""
    if isinstance(value, list):
        return " to ".join(shown(one) for one in value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)
