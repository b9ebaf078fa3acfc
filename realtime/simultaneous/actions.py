"""LiveMind's two actions while the user types: write a note (`inference`) or `wait` (arXiv 2406.14319).

The paper's replies begin with the action's name. Here the note itself is the reply, and only `wait.` is a word of its
own: notes stay in the conversation byte for byte, and small models copy such a prefix into the answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

NOTE_TOKEN_BUDGET = 64
MAX_NOTE_CHARS = 400

# For constrained decoding. The token budget bounds a note: a bound on its characters takes seconds to compile.
ACTION_GRAMMAR = r"(wait\.|[^ \n][^\n]*)"

_WAIT = "wait."


@dataclass(frozen=True)
class Action:
    """`note` is empty except for `inference`."""

    kind: Literal["inference", "wait", "unparsable"]
    note: str = ""


def parse_action(text: str) -> Action:
    """What the model chose. What is blank, has several lines or is too long never becomes a note."""
    note = text.strip()
    if note.lower().startswith(_WAIT):
        return Action("wait")
    if not note or "\n" in note or len(note) > MAX_NOTE_CHARS:
        return Action("unparsable")
    return Action("inference", note)
