"""The virtual typing clock: generation takes real time, waiting for keystrokes does not.

LiveMind (arXiv 2406.14319) types on a simulated clock that a model call advances by its real duration. Here the server
works by itself while the driver types, so the same clock is kept from outside:

* An edit is due when the typing time between it and the one before has passed, *or* as soon as the server is known to
  have nothing left to do for the text as it is. In the second case the rest of the gap is skipped: in real time the
  server would have spent it idle. So whatever it has finished when an edit comes, it would have finished in real time
  too, and what it has not finished it would not have finished either.
* What it does is known from its events. It is busy until it has acknowledged the edit, while a note is being written,
  and from the beginning of a draft until the text changes (nothing tells when a draft is complete, so the clock then
  runs as a watch does). Prefill has no event for its end: it counts as over when nothing has come for `probe_s`, or
  twice the longest step that was seen, if that is more.
* The server starts some work only in a pause. Where a gap is longer than `pause_s` (more than the longest of its
  timers), at least that much of it passes.
* A letter inside a word starts nothing that its predecessor did not: once the server is quiet, letters follow one
  another as they are acknowledged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bench.typing.script import Edit

PROBE_S = 0.06
PAUSE_S = 0.35


@dataclass
class Watch:
    """What the server is known to do, from its events. Times are seconds of any one clock.

    The session must ask for the families `prefill`, `inference`, `draft` and `trace`.
    """

    probe_s: float = PROBE_S
    pause_s: float = PAUSE_S
    sent: int = 0
    _acknowledged: int = 0
    _note: int | None = None
    _drafting: bool = False
    _heard_at: float = 0.0
    _longest_step_s: float = 0.0

    def event(self, event: dict[str, Any], now: float) -> None:
        match event["type"]:
            case "input_text_buffer.updated":
                self._acknowledged = event["revision"]
            case "midstream.inference.started":
                self._note = event["index"]
            case "midstream.inference.done" | "midstream.inference.discarded" if event["index"] == self._note:
                self._note = None
            case "midstream.draft.started":
                self._drafting = True
            case "midstream.draft.discarded":
                self._drafting = False
            case "midstream.trace" if "engine_started_at" in event:
                step = event["engine_ended_at"] - event["engine_started_at"]
                self._longest_step_s = max(self._longest_step_s, step)
            case "midstream.prefill" | "midstream.inference.delta":
                pass
            case _:
                return
        self._heard_at = now

    @property
    def is_acknowledged(self) -> bool:
        return self._acknowledged >= self.sent

    def quiet_at(self) -> float | None:
        """When the server counts as quiet if nothing more is heard of it; None while it is known to be busy."""
        if not self.is_acknowledged or self._note is not None or self._drafting:
            return None
        return self._heard_at + max(self.probe_s, 2 * self._longest_step_s)

    def due_at(self, edit: Edit, sent_at: float, gap_s: float, was_quiet: bool) -> float:
        """When the edit after `edit` is to be sent, by what is known now: never after `sent_at + gap_s`.

        `was_quiet`: whether the server was quiet when `edit` was sent.
        """
        due = sent_at + gap_s
        if gap_s <= self.pause_s and was_quiet and _is_inside_word(edit):
            return sent_at if self.is_acknowledged else due
        quiet = self.quiet_at()
        if quiet is None:
            return due
        if gap_s > self.pause_s:
            quiet = max(quiet, sent_at + self.pause_s)
        return min(due, quiet)


def _is_inside_word(edit: Edit) -> bool:
    """Other scripts than this one write words without spaces."""
    return edit.start == edit.end and len(edit.text) == 1 and edit.text.isascii() and edit.text.isalnum()
