"""One turn as bars on a clock whose zero is the commit. Pure; holds no text."""

from __future__ import annotations

from typing import Any

from realtime.messages import TurnRecord
from web.percentiles import complete_ms, first_token_ms

MIN_GAP_MS = 0.5


def waterfall(turn: TurnRecord) -> dict[str, Any]:
    """What the dashboard draws. `spans` are `{"name", "start", "end"}` in milliseconds from the commit (before it:
    negative): the measured ones, "answer" from the first token on where no tool waits, and "unaccounted" for whatever
    part of commit..done nothing explains."""
    zero = turn.committed_at or turn.typing_started_at or turn.done_at
    spans = [_span(name, start - zero, end - zero) for name, start, end in turn.spans if end >= start]
    done = max(0.0, (turn.done_at - zero) * 1000)
    if turn.first_token_at and turn.done_at:
        pauses = [span for span in spans if span["name"] != "typing"]
        spans += [
            {"name": "answer", "start": start, "end": end}
            for start, end in gaps(pauses, max(0.0, (turn.first_token_at - zero) * 1000), done)
        ]
    spans += [
        {"name": "unaccounted", "start": start, "end": end}
        for start, end in gaps([span for span in spans if span["name"] != "typing"], 0.0, done)
        if end - start >= MIN_GAP_MS
    ]
    return {
        "turn": turn.turn,
        "session": turn.session,
        "node": turn.node,
        "strategy": turn.strategy,
        "status": turn.status,
        "at": turn.done_at,
        "typed_ms": max(0.0, (zero - turn.typing_started_at) * 1000) if turn.typing_started_at else 0.0,
        "ttft_ms": first_token_ms(turn),
        "complete_ms": complete_ms(turn),
        "done": done,
        "input_tokens": turn.input_tokens,
        "cached_tokens": turn.cached_tokens,
        "output_tokens": turn.output_tokens,
        "notes": turn.notes,
        "spans": spans,
    }


def gaps(spans: list[dict[str, Any]], start: float, end: float) -> list[tuple[float, float]]:
    """The parts of `start`..`end` that no span covers."""
    free: list[tuple[float, float]] = []
    reached = start
    for span in sorted(spans, key=lambda span: float(span["start"])):
        if span["start"] >= end:
            break
        if span["start"] > reached:
            free.append((reached, span["start"]))
        reached = max(reached, span["end"])
    if reached < end:
        free.append((reached, end))
    return free


def _span(name: str, start: float, end: float) -> dict[str, Any]:
    return {"name": name, "start": start * 1000, "end": end * 1000}
