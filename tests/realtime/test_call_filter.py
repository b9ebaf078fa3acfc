"""Calls and text told apart, and what becomes of calls that nobody could run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from realtime.call_filter import CallFilter
from realtime.messages import FunctionCallPart

ADD = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
CALL = FunctionCallPart("add", '{"a": 1}')
UNKNOWN = '<tool_call>\n{"name": "rm", "arguments": {"a": 1}}\n</tool_call>'
MALFORMED = '<tool_call>\n{"name": add}\n</tool_call>'
UNFINISHED = '<tool_call>\n{"name": "add", "argu'
BARE = '{"name": "add", "arguments": {"a": 1}}'


def read(pieces: list[str], several: bool = True) -> tuple[str, list[FunctionCallPart], bool]:
    calls = CallFilter(["add"], several)
    text = "".join(calls.feed(piece) for piece in pieces) + calls.finish()
    return text, calls.calls, calls.is_over


@pytest.mark.parametrize(
    ("said", "text", "calls"),
    [
        ("Hello.", "Hello.", []),
        (f"Wait.\n{ADD}", "Wait.", [CALL]),
        (ADD + ADD, "", [CALL, CALL]),
        (f"{ADD}\nDone.", "", [CALL]),
        (BARE, "", [CALL]),
        (UNKNOWN, UNKNOWN, []),
        (MALFORMED, MALFORMED, []),
        (UNFINISHED, UNFINISHED, []),
        (f"{ADD}\n{UNFINISHED}", UNFINISHED, [CALL]),
    ],
)
def test_only_calls_that_can_be_run_are_calls(said: str, text: str, calls: list[FunctionCallPart]) -> None:
    assert read([said])[:2] == (text, calls)


def test_the_first_call_is_enough_without_several() -> None:
    assert read([ADD + ADD], several=False) == ("", [CALL], True)


def test_a_call_that_the_prompt_began_is_a_call() -> None:
    calls = CallFilter(["add"], given='<tool_call>\n{"name": "add", "arguments":')
    assert calls.feed(' {"a"') + calls.feed(": 1}}") + calls.finish() == ""
    assert calls.calls == [CALL]


@given(
    said=st.lists(st.sampled_from([ADD, UNKNOWN, MALFORMED, "Some text. ", "<tool", BARE]), max_size=4).map("".join),
    cuts=st.lists(st.integers(1, 30), max_size=20),
)
def test_borders_change_nothing(said: str, cuts: list[int]) -> None:
    pieces: list[str] = []
    rest = said
    for cut in cuts:
        pieces, rest = [*pieces, rest[:cut]], rest[cut:]
    text, calls, is_over = read([*pieces, rest])
    assert (text, calls, is_over) == read(list(said))
