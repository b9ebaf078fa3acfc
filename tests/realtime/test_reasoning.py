from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from realtime.reasoning import ReasoningFilter, Said

FRAGMENTS = ["<think>", "</think>", "<thi", "nk>", "</th", "ink>", "<", "\n", " ", "a", "So", "é"]
texts = st.lists(st.sampled_from(FRAGMENTS), max_size=10).map("".join)


def split_off(*parts: str, opened: bool = False) -> Said:
    found = ReasoningFilter(opened)
    said = [*(found.feed(part) for part in parts), found.finish()]
    assert found.held == 0
    return Said("".join(s.reasoning for s in said), "".join(s.answer for s in said))


def expected(text: str, opened: bool) -> Said:
    match = re.fullmatch(r"(?s)(\s*<think>)?(.*?)(</think>(.*))?", text)
    assert match is not None
    if not opened and match[1] is None:
        return Said("", text)
    inside = text if opened else text[match.end(1) :]
    reasoning, _, answer = inside.partition("</think>")
    return Said(reasoning.strip(), answer.lstrip())


@settings(max_examples=500, deadline=None)
@given(text=texts, opened=st.booleans(), data=st.data())
def test_every_split_gives_what_the_whole_text_says(text: str, opened: bool, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    split = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = expected(text, opened)
    assert split_off(*split, opened=opened) == split_off(*text, opened=opened) == whole


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<think>\nHm.\n</think>\n\nFour.", Said("Hm.", "Four.")),
        ("<think>\n\n</think>\n\nFour.", Said("", "Four.")),
        ("\n<think>Hm", Said("Hm", "")),
        ("<think>Hm </thi", Said("Hm </thi", "")),
        (" Four.", Said("", " Four.")),
        ("<thinking> is a tag.", Said("", "<thinking> is a tag.")),
        ("One writes <think>x</think>.", Said("", "One writes <think>x</think>.")),
        ("<thin", Said("", "<thin")),
    ],
)
def test_texts(text: str, said: Said) -> None:
    assert split_off(text) == split_off(*text) == said


def test_a_block_that_the_prompt_opened() -> None:
    assert split_off("\nHm", ".\n</think>\nFour.", opened=True) == Said("Hm.", "Four.")


def test_an_answer_is_passed_on_at_once() -> None:
    found = ReasoningFilter()
    assert found.feed("Four") == Said("", "Four")
    assert found.feed(" <think>") == Said("", " <think>")


def test_reasoning_is_passed_on_as_it_comes() -> None:
    found = ReasoningFilter()
    assert found.feed("<think>\nHm, ") == Said("Hm,", "")
    assert found.is_inside
    assert found.feed("two </") == Said(" two", "")
    assert found.feed("think>\n2") == Said("", "2")
    assert not found.is_inside
