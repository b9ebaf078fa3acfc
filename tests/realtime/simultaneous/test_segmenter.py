from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from realtime.simultaneous.segmenter import MIN_LENGTH, split_sentences, stable_segments

FRAGMENTS = [
    *[
        "Hello there",
        "a",
        " ",
        "  ",
        "\n",
        "\n\n",
        ".",
        "!",
        "?",
        "…",
        "...",
        "。",
        "！",
        "”",
        ")",
        "```",
        "``",
        "`",
        "py",
    ],
    *["Mr", "e.g", "J", "1", "3.14", "```\n", "\n```", "long sentence here", "你好世界", "\t", "\u2028", "“", "x. "],
]
texts = st.lists(st.one_of(st.sampled_from(FRAGMENTS), st.text(max_size=2)), max_size=25).map("".join)


@settings(max_examples=400, deadline=None)
@given(text=texts)
def test_nothing_is_lost(text: str) -> None:
    segments = split_sentences(text)
    assert "".join(segments) == text
    assert all(segments)
    assert all(len(segment.strip()) >= MIN_LENGTH for segment in segments[:-1])


@settings(max_examples=400, deadline=None)
@given(text=texts, more=texts)
def test_a_stable_segment_never_changes(text: str, more: str) -> None:
    stable = stable_segments(text)
    assert stable_segments(text + more)[: len(stable)] == stable


@pytest.mark.parametrize(
    "segments",
    [
        ["How are you today? ", "I am fine, thanks! ", "Good to hear that… ", "Bye"],
        ["He said “go home now.” ", "Then he left (in a hurry!) ", "and slept"],
        ["A first paragraph\n\n", "A second paragraph \n \n", "and a third"],
        ["Dr. Who met J. R. R. Tolkien, i.e. the author, at 3.14 p.m. today. ", "End"],
        ["1. First of all, this. ", "Then that.\n", "2. Second of all, more"],
        ["今天天气很好，我们去公园玩。", "他说：“好的，没问题，我们走吧！”", "然后"],
        ["Look at this:\n\n", "```py\nx = 1. \n\ny = 'Hello there! '\n```\n", "What does it do?"],
        ["The value was 5. ", "It is 3.5 now, or v1.2.3 at www.example.com. ", "Ok"],
        ["Not a fence: ``` here. ", "Another sentence. ", "x"],
        ["one line that goes\non in the next line"],
    ],
)
def test_text_is_cut_where_sentences_end(segments: list[str]) -> None:
    assert split_sentences("".join(segments)) == segments


def test_short_segments_join_the_next() -> None:
    assert split_sentences("Hi. Yes. I would like that. Ok") == ["Hi. Yes. I would like that. ", "Ok"]


def test_a_sentence_is_stable_when_the_next_one_begins() -> None:
    assert stable_segments("This is a sentence.") == []
    assert stable_segments("This is a sentence. ") == []
    assert stable_segments("This is a sentence. A") == ["This is a sentence. "]


def test_an_open_code_block_is_not_cut() -> None:
    assert stable_segments("Please explain this:\n\n```\nprint('Hi there.')\n\nx = 1. Y") == [
        "Please explain this:\n\n"
    ]


def test_no_text_has_no_segments() -> None:
    assert split_sentences("") == []
    assert stable_segments("") == []


@pytest.mark.timeout(20)
@pytest.mark.parametrize("unit", [".", ". ", "\n ", "。", "`", "``` ", ".)", " ", "\n\n", "a.\n"])
def test_long_runs_take_linear_time(unit: str) -> None:
    text = unit * (100_000 // len(unit))
    assert "".join(split_sentences(text)) == text
