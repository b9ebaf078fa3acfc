"""Tells the reasoning of a model from its answer: `<think>...</think>` at the beginning of what it says. Pure."""

from __future__ import annotations

from typing import Literal, NamedTuple

from realtime.stop_strings import partial_start

OPEN = "<think>"
CLOSE = "</think>"


class Said(NamedTuple):
    reasoning: str
    answer: str


class ReasoningFilter:
    """Feed it text in any pieces: the same reasoning and the same answer come out, in this order.

    A block that is never closed is all reasoning. White space next to a tag belongs to neither. `opened`: the prompt
    ends with the opening tag. `<think>` after the beginning is text. `found` says whether there is a block.
    """

    def __init__(self, opened: bool = False) -> None:
        self._place: Literal["before", "inside", "after"] = "inside" if opened else "before"
        self._after_tag = self.found = opened
        self._pending = ""

    @property
    def held(self) -> int:
        """How many of the characters fed are still undecided."""
        return len(self._pending)

    @property
    def is_inside(self) -> bool:
        return self._place == "inside"

    def feed(self, text: str) -> Said:
        """What `text` makes certain."""
        self._pending += text
        if self._place == "before":
            self._begin()
        reasoning = self._think() if self._place == "inside" else ""
        return Said(reasoning, self._release(len(self._pending)) if self._place == "after" else "")

    def finish(self) -> Said:
        """What was held back for a tag that did not come."""
        if self._place == "before":
            self._place = "after"
        if self._place == "after":
            return self.feed("")
        return Said(self._release(len(self._pending)).rstrip(), "")

    def _begin(self) -> None:
        text = self._pending.lstrip()
        if text.startswith(OPEN):
            self._place, self._after_tag, self.found = "inside", True, True
            self._pending = text[len(OPEN) :]
        elif not OPEN.startswith(text):
            self._place = "after"

    def _think(self) -> str:
        end = self._pending.find(CLOSE)
        if end < 0:
            return self._release(len(self._pending[: partial_start(self._pending, [CLOSE])].rstrip()))
        reasoning = self._release(end).rstrip()
        self._pending = self._pending.removeprefix(CLOSE)
        self._place, self._after_tag = "after", True
        return reasoning

    def _release(self, length: int) -> str:
        text, self._pending = self._pending[:length], self._pending[length:]
        if self._after_tag:
            text = text.lstrip()
            self._after_tag = not text
        return text
