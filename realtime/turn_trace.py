"""When what happened in a turn: from the first keystroke to the last token, for metrics, `/admin` and the bench."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from realtime.messages import ToolResult, TurnRecord
from realtime.turn_usage import TurnUsage


@dataclass
class Arrival:
    """One client event's way to the actor: read from the socket, posted to Redis, taken from the inbox (seconds)."""

    received_at: float
    posted_at: float
    handled_at: float


@dataclass
class TurnTrace:
    """`sent` is the arrival of the commit (or of `response.create` when nothing was typed). `draft` says what the
    `drafts` begun before were good for, and `draft_tokens` are those of the answer that came from one."""

    session: str
    node: str
    strategy: str
    sent: Arrival
    typing_started_at: float = 0.0
    prefilled_before_commit: int = 0
    notes: int = 0
    drafts: int = 0
    draft: str | None = None
    draft_tokens: int = 0
    draft_wasted_tokens: int = 0
    spans: list[tuple[str, float, float]] = field(default_factory=list)
    first_token_at: float = 0.0
    done_at: float = 0.0
    status: str = "in_progress"
    resumes: list[dict[str, float]] = field(default_factory=list)
    asked_at: list[float] = field(default_factory=list)

    def asked(self) -> None:
        """The engine is asked to generate."""
        self.asked_at.append(time.time())

    def first_token(self) -> None:
        """Called at every token batch; the first of the turn and the first after each tool result count."""
        now = time.time()
        if not self.first_token_at:
            self.first_token_at = now
        if self.resumes and "host_token_at" not in self.resumes[-1]:
            self.resumes[-1]["host_token_at"] = now

    def tool(self, started: float, result: ToolResult) -> None:
        now = time.time()
        self.spans.append(("tool", started, now))
        self.resumes.append(
            {
                "dispatched_at": started,
                "worker_started_at": result.started_at,
                "worker_finished_at": result.finished_at,
                "host_received_at": now,
            }
        )

    def done(self, status: str) -> None:
        self.status, self.done_at = status, time.time()

    def record(self, turn: str, usage: TurnUsage) -> TurnRecord:
        """What `/admin` and the metrics see."""
        typing = [("typing", self.typing_started_at, self.sent.received_at)] if self.typing_started_at else []
        return TurnRecord(
            turn=turn,
            session=self.session,
            node=self.node,
            strategy=self.strategy,
            status=self.status,
            typing_started_at=self.typing_started_at,
            committed_at=self.sent.received_at,
            first_token_at=self.first_token_at,
            done_at=self.done_at,
            input_tokens=usage.input_tokens,
            cached_tokens=usage.cached_tokens,
            output_tokens=usage.output_tokens,
            prefilled_before_commit=self.prefilled_before_commit,
            prefilled_after_commit=usage.input_tokens - usage.cached_tokens,
            notes=self.notes,
            spans=typing + self.spans,
        )

    def turn_event(self, response_id: str, usage: TurnUsage) -> dict[str, Any]:
        """Fields of `midstream.turn`."""
        sent = self.sent.received_at
        return {
            "response_id": response_id,
            "strategy": self.strategy,
            "ttft_ms": round((self.first_token_at - sent) * 1000, 3) if self.first_token_at else None,
            "complete_ms": round((self.done_at - sent) * 1000, 3),
            "input_tokens": usage.input_tokens,
            "cached_tokens": usage.cached_tokens,
            "prefilled_before_commit": self.prefilled_before_commit,
            "notes": self.notes,
            "drafts": self.drafts,
            "draft": self.draft,
            "draft_tokens": self.draft_tokens,
            "draft_wasted_tokens": self.draft_wasted_tokens,
        }

    def trace_event(self, response_id: str, usage: TurnUsage) -> dict[str, Any]:
        """Fields of `midstream.trace`: every time stamp on the way, in seconds since the epoch."""
        engine = [
            {
                "asked_at": asked_at,
                "received_at": finished.received_at,
                "first_scheduled_at": finished.first_scheduled_at,
                "first_token_at": finished.first_token_at,
                "output_tokens": finished.output_tokens,
            }
            for asked_at, finished in zip(self.asked_at[-len(usage.finished) :], usage.finished, strict=False)
        ]
        return {
            "response_id": response_id,
            "web_received_at": self.sent.received_at,
            "web_posted_at": self.sent.posted_at,
            "host_received_at": self.sent.handled_at,
            "host_token_at": self.first_token_at,
            "engine": engine,
            "resumes": self.resumes,
        }
