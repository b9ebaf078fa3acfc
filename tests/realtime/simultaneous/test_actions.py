from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from realtime.simultaneous.actions import ACTION_GRAMMAR, MAX_NOTE_CHARS, Action, parse_action


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("wait.", Action("wait")),
        (" wait.\n", Action("wait")),
        ("inference. 12 * 3 = 36.", Action("inference", "12 * 3 = 36.")),
        ("inference. Paris \n", Action("inference", "Paris")),
    ],
)
def test_an_action_is_parsed(text: str, action: Action) -> None:
    assert parse_action(text) == action


@pytest.mark.parametrize(
    "text",
    [
        *["", "wait", "Wait.", "wait. more", "I would wait.", "note", "inference: x", "inferences. x"],
        *["inference.", "inference. ", "inference.x", "inference. \t", "inference. a\nb"],
        "inference. " + "x" * (MAX_NOTE_CHARS + 1),
    ],
)
def test_anything_else_is_never_a_note(text: str) -> None:
    assert parse_action(text) == Action("unparsable")


@given(st.from_regex(ACTION_GRAMMAR, fullmatch=True))
def test_whatever_the_grammar_allows_is_parsed(text: str) -> None:
    assert re.fullmatch(ACTION_GRAMMAR, text)
    blank = text.startswith("inference. ") and not text.removeprefix("inference. ").strip()
    assert parse_action(text).kind == ("unparsable" if blank else text.partition(".")[0])


def test_the_grammar_wants_text_first() -> None:
    assert not re.fullmatch(ACTION_GRAMMAR, "inference.  ")
