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
        (" Wait. More may follow.\n", Action("wait")),
        ("12 * 3 = 36.", Action("inference", "12 * 3 = 36.")),
        ("Paris \n", Action("inference", "Paris")),
        ("Waiting rooms are full.", Action("inference", "Waiting rooms are full.")),
    ],
)
def test_an_action_is_parsed(text: str, action: Action) -> None:
    assert parse_action(text) == action


@pytest.mark.parametrize("text", ["", " \t\n", "a\nb", "x" * (MAX_NOTE_CHARS + 1)])
def test_what_is_no_single_short_line_never_becomes_a_note(text: str) -> None:
    assert parse_action(text) == Action("unparsable")


@given(st.from_regex(ACTION_GRAMMAR, fullmatch=True))
def test_whatever_the_grammar_allows_is_a_wait_a_note_or_nothing(text: str) -> None:
    action = parse_action(text)
    assert (action.kind == "inference") == bool(action.note)
    assert "\n" not in action.note


def test_the_grammar_wants_text_first() -> None:
    assert not re.fullmatch(ACTION_GRAMMAR, "  ")
