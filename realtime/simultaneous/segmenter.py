"""Sentences of text that is still being typed, without losing a character and without second thoughts.

A boundary is decided by the text before it and the one character after it, so appending never moves it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

MIN_LENGTH = 10

_CJK_ENDERS = "。！？．"
# Every run is consumed whole and once, so that no text takes more than linear time.
_TOKEN = re.compile(rf"(?P<fence>`{{3,}})|(?P<enders>[.!?…{_CJK_ENDERS}]++)[\"'”’)\]}}»」』）】》]*+|(?P<space>\s++)")
_LAST_WORD = re.compile(r"[^\s(\[{\"'“‘]*\Z")
_LIST_NUMBER = re.compile(r"(?:\A|\n)[^\S\n]*(?:[-*+>][^\S\n]+)?(?:\d{1,3}|[A-Za-z])\Z")
_INITIAL = re.compile(r"(?:[^\W\d_]\.)*[A-Z]\Z")
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
    ended_at = closed_at = -1
    for token in _TOKEN.finditer(text):
        end = token.end()
        if token["fence"]:
            if token.start() == line_start:
                in_code = not in_code
                closed_at = -1 if in_code else end
        elif token["space"]:
            newlines = token["space"].count("\n")
            line_start = end if newlines else line_start
            ends = newlines > 1 or ended_at == token.start() or (closed_at == token.start() and newlines > 0)
            if ends and not in_code and end < len(text):
                yield end
        elif not in_code and not (token["enders"] == "." and _continues(text, token.start())):
            ended_at = end
            if any(char in _CJK_ENDERS for char in token["enders"]) and end < len(text) and not text[end].isspace():
                yield end


def _continues(text: str, dot: int) -> bool:
    """Whether the full stop at `dot` belongs to an abbreviation, an initial or a list number."""
    before = text[max(0, dot - _LOOK_BACK) : dot]
    match = _LAST_WORD.search(before)
    word = match.group() if match else ""
    if word.lower() in _ABBREVIATIONS or _INITIAL.match(word):
        return True
    return bool(_LIST_NUMBER.search(before)) and (dot <= _LOOK_BACK or "\n" in before)
