"""Ends a text before the first of some strings, which may lie across any borders of the pieces it comes in. Pure."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Feed it text in any pieces: the same text comes out. The stop that is complete first counts; of those that end
    together, the longest. What may be the beginning of a stop is held back."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.stopped = False
        self._stops = stops
        self._pending = ""

    @property
    def held(self) -> int:
        """How many of the characters fed were not given out; after a stop, those from its beginning on."""
        return len(self._pending)

    def feed(self, text: str) -> str:
        """What is certain to be text before any stop; nothing once `stopped`."""
        self._pending += text
        if self.stopped:
            return ""
        found = [(start + len(stop), start) for stop in self._stops if (start := self._pending.find(stop)) >= 0]
        self.stopped = bool(found)
        return self._release(min(found)[1] if found else partial_start(self._pending, self._stops))

    def finish(self) -> str:
        """What was held back for a stop that did not come."""
        return "" if self.stopped else self._release(len(self._pending))

    def _release(self, length: int) -> str:
        text, self._pending = self._pending[:length], self._pending[length:]
        return text


def partial_start(text: str, wholes: Sequence[str]) -> int:
    """Where one of `wholes` may begin that `text` ends in the middle of; else the length of `text`."""
    longest = max((len(whole) for whole in wholes), default=0)
    for start in range(max(0, len(text) - longest + 1), len(text)):
        if any(whole.startswith(text[start:]) for whole in wholes):
            return start
    return len(text)
