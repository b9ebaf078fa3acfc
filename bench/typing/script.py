"""A script of timed edits: what somebody who types does to an input box, and when."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce


@dataclass(frozen=True)
class Edit:
    """At `at_s` seconds after the start, the characters `start`..`end` (code points) become `text`."""

    at_s: float
    start: int
    end: int
    text: str

    def apply(self, text: str) -> str:
        """Raises `ValueError` when the range is not inside `text`."""
        if not 0 <= self.start <= self.end <= len(text):
            raise ValueError(f"{self.start}..{self.end} is not inside {len(text)} characters")
        return text[: self.start] + self.text + text[self.end :]


@dataclass(frozen=True)
class Script:
    """Edits in order of time; the first is at 0 s. Send is pressed right after the last."""

    edits: Sequence[Edit]

    @property
    def duration_s(self) -> float:
        return self.edits[-1].at_s if self.edits else 0.0

    @property
    def text(self) -> str:
        """What is in the box at the end."""
        return reduce(lambda text, edit: edit.apply(text), self.edits, "")

    def texts(self) -> Iterator[str]:
        """What is in the box after each edit."""
        text = ""
        for edit in self.edits:
            text = edit.apply(text)
            yield text

    def lasting(self, duration_s: float) -> Script:
        """The same edits, slower or faster as a whole."""
        factor = duration_s / self.duration_s if self.duration_s else 1.0
        return Script([replace(edit, at_s=edit.at_s * factor) for edit in self.edits])

    def ending_with(self, text: str) -> Script:
        """`text` appears together with the last edit and takes no time: the options of a question, in the paper."""
        end = len(self.text)
        return Script([*self.edits, Edit(self.duration_s, end, end, text)]) if text else self


@dataclass
class Writer:
    """Builds a script: an input box, and a clock that `wait` moves."""

    text: str = ""
    now_s: float = 0.0
    edits: list[Edit] = field(default_factory=list)
    _begin_s: float = 0.0

    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    def splice(self, start: int, end: int, text: str) -> None:
        """The first edit is where the script begins."""
        if not self.edits:
            self._begin_s = self.now_s
        edit = Edit(self.now_s - self._begin_s, start, end, text)
        self.text = edit.apply(self.text)
        self.edits.append(edit)

    def append(self, text: str) -> None:
        self.splice(len(self.text), len(self.text), text)

    def backspace(self) -> None:
        self.splice(len(self.text) - 1, len(self.text), "")
