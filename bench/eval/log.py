"""The log of an evaluation: one JSON line for each question and variant, so that a run can be gone on with."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.eval.variants import Variant

Settings = dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """One question under one variant. Seconds count from the last keystroke; `engine` holds what the engine's counters
    grew by, `error` says why there is no answer."""

    question: str
    subject: str
    variant: Variant
    wanted: str
    given: str | None = None
    right: bool = False
    text: str = ""
    status: str = "failed"
    latency_s: float | None = None
    ttft_s: float | None = None
    typed_s: float = 0.0
    wall_s: float = 0.0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    prefilled_before_send: int = 0
    notes: list[str] = field(default_factory=list)
    waits: int = 0
    discarded_notes: int = 0
    drafts: int = 0
    draft: str | None = None
    draft_used_tokens: int = 0
    draft_wasted_tokens: int = 0
    engine: dict[str, float] = field(default_factory=dict)
    error: str | None = None

    @property
    def key(self) -> tuple[str, Variant]:
        return self.question, self.variant


class Log:
    """Lines made with other settings are left alone and not read."""

    def __init__(self, file: Path, settings: Settings) -> None:
        self._file = file
        self._settings = settings

    def read(self) -> list[Outcome]:
        """The newest outcome for each question and variant, without those that failed. A line that was cut when a run
        was killed is no outcome."""
        if not self._file.exists():
            return []
        found: dict[tuple[str, Variant], Outcome] = {}
        for line in self._file.read_text(encoding="utf-8").splitlines():
            try:
                row = json.loads(line)
                if row.pop("settings") == self._settings:
                    outcome = Outcome(**{**row, "variant": Variant(**row["variant"])})
                    found[outcome.key] = outcome
            except (ValueError, TypeError, KeyError):
                continue
        return [outcome for outcome in found.values() if outcome.error is None]

    def add(self, outcome: Outcome) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        begins_line = not self._file.exists() or self._file.read_bytes()[-1:] in (b"", b"\n")
        with self._file.open("a", encoding="utf-8") as log:
            log.write("" if begins_line else "\n")
            log.write(json.dumps({"settings": self._settings, **asdict(outcome)}) + "\n")


def by_variant(outcomes: Iterable[Outcome]) -> dict[Variant, dict[str, Outcome]]:
    """For each variant its outcomes by question."""
    table: dict[Variant, dict[str, Outcome]] = {}
    for outcome in outcomes:
        table.setdefault(outcome.variant, {})[outcome.question] = outcome
    return table
