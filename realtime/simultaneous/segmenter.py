"""Sentences of text that is still being typed, without losing a character and without second thoughts.

A boundary is decided by the text before it and the one character after it, so appending never moves it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

MIN_LENGTH = 10

_CJK_ENDERS = "。！？．"
# Every run is consumed whole and once, so that no text takes more than linear time.
_TOKEN = re.compile(
    rf"(?:(?P<fence>`{{3,}})|(?P<enders>[.!?…{_CJK_ENDERS}]++)[\"'”’)\]}}»」』）】》]*+|(?=\n))(?P<space>\s*+)"
)
_LIST_NUMBER = re.compile(r"(?:\A|\n)[^\S\n]*(?:\d{1,3}|[A-Za-z])\Z")
_INITIAL = re.compile(r"(?:[^\W\d_]\.)*[A-Z]")
_ABBREVIATIONS = frozenset(
    {"mr", "mrs", "ms", "dr", "prof", "sr", "jr", "st", "rev", "hon", "gov", "sen", "rep", "sgt", "capt", "lt"}
    | {"vs", "etc", "e.g", "i.e", "eg", "ie", "cf", "approx", "nos", "figs", "fig", "eq", "eqs", "vol", "pp", "eds"}
    | {"inc", "ltd", "corp", "dept", "est", "a.m", "p.m", "u.s", "u.k", "ph.d", "b.a", "m.a", "b.sc", "m.sc"}
    | {"jan", "feb", "aug", "sept", "oct", "nov", "dec", "tue", "wed", "thu", "fri"}
)
_LOOK_BACK = 64


def split_sentences(text: str) -> list[str]:
    """All segments; joined they are `text`. White space belongs to the segment before it.

    A segment of fewer than `MIN_LENGTH` characters is joined with the next; only the last may be shorter.
    """
    segments = []
    start = 0
    for end in _boundaries(text):
        if len(text[start:end].strip()) >= MIN_LENGTH:
            segments.append(text[start:end])
            start = end
    return [*segments, text[start:]] if start < len(text) else segments


def stable_segments(text: str) -> list[str]:
    """The segments that stay as they are whatever is appended: all but the last."""
    return split_sentences(text)[:-1]


def _boundaries(text: str) -> Iterator[int]:
    """Where sentences, paragraphs and code blocks end. A boundary at the very end is not one yet."""
    in_code = False
    line_start = 0
    for token in _TOKEN.finditer(text):
        newlines = token["space"].count("\n")
        ends = newlines > 1
        if token["fence"] and token.start() == line_start:
            in_code = not in_code
            ends = newlines > 0
        elif token["enders"] and not ends:
            ends = _ends_sentence(text, token["enders"], token.start(), bool(token["space"]))
        if newlines:
            line_start = token.end()
        if ends and not in_code and token.end() < len(text):
            yield token.end()


def _ends_sentence(text: str, enders: str, start: int, spaced: bool) -> bool:
    if any(char in _CJK_ENDERS for char in enders):
        return True
    return spaced and not (enders == "." and _continues(text, start))


def _continues(text: str, dot: int) -> bool:
    """Whether the full stop at `dot` belongs to an abbreviation, an initial or a list number."""
    before = text[max(0, dot - _LOOK_BACK) : dot]
    if not before or before[-1].isspace():
        return False
    word = before.split()[-1].lstrip("([{\"'“‘")
    if word.lower() in _ABBREVIATIONS or _INITIAL.fullmatch(word):
        return True
    return len(word) <= 3 and word.isalnum() and bool(_LIST_NUMBER.search(before))
