"""LiveMind's two actions while the user types: write a note (`inference`) or `wait` (arXiv 2406.14319)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

NOTE_TOKEN_BUDGET = 64
MAX_NOTE_CHARS = 400

# For constrained decoding. The token budget bounds a note: a bound on its characters takes seconds to compile.
ACTION_GRAMMAR = r"(wait\.|inference\. [^ \n][^\n]*)"

_ACTION = re.compile(rf"\s*(?:(?P<wait>wait\.)|inference\. (?P<note>[^ \n][^\n]{{0,{MAX_NOTE_CHARS - 1}}}))\s*")


@dataclass(frozen=True)
class Action:
    """`note` is empty except for `inference`."""

    kind: Literal["inference", "wait", "unparsable"]
    note: str = ""


def parse_action(text: str) -> Action:
    """What the model chose. Text in any other form is `unparsable` and never becomes a note."""
    match = _ACTION.fullmatch(text)
    if match is None:
        return Action("unparsable")
    if match["wait"]:
        return Action("wait")
    note = match["note"].strip()
    return Action("inference", note) if note else Action("unparsable")
