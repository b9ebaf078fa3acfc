"""Sentences of text that is still being typed, without losing a character and without second thoughts.

A boundary is decided by the text before it and the one character after it, so appending never moves it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

MIN_LENGTH = 10

_CLOSERS = "\"'”’)\\]}»」』）】》"
_BOUNDARY = re.compile(
    rf"""(?P<fence>(?<![^\n])\ {{0,3}}```[^\n]*\n\s*(?=\S))          # the line that opens or closes a code block
    | (?P<open>(?<![^\n])\ {{0,3}}```)                               # the same, its line unfinished
    | (?P<paragraph>\n[^\S\n]*\n\s*(?=\S))
    | (?P<ender>[.!?…]+)[{_CLOSERS}]*\s+(?=\S)
    | [。！？．][。！？．…]*[{_CLOSERS}]*\s*(?=[^\s。！？．…{_CLOSERS}])
    """,
    re.VERBOSE,
)
_LAST_WORD = re.compile(r"[^\s(\[{\"'“‘]*\Z")
_LIST_NUMBER = re.compile(r"(?:\A|\n)[^\S\n]*(?:[-*+>][^\S\n]+)?(?:\d{1,3}|[A-Za-z])\Z")
_INITIAL = re.compile(r"(?:[^\W\d_]\.)*[A-Z]\Z")
_ABBREVIATIONS = frozenset(
    [
        "mr",
        "mrs",
        "ms",
        "dr",
        "prof",
        "sr",
        "jr",
        "st",
        "vs",
        "etc",
        "e.g",
        "i.e",
        "eg",
        "ie",
        "cf",
        "al",
        "approx",
        "no",
        "nos",
        "fig",
        "figs",
        "eq",
        "sec",
        "vol",
        "ch",
        "pp",
        "ed",
        "eds",
        "inc",
        "ltd",
        "co",
        "corp",
        "dept",
        "est",
        "min",
        "max",
        "avg",
        "jan",
        "feb",
        "mar",
        "apr",
        "jun",
        "jul",
        "aug",
        "sep",
        "sept",
        "oct",
        "nov",
        "dec",
        "mon",
        "tue",
        "wed",
        "thu",
        "fri",
        "sat",
        "sun",
        "gen",
        "col",
        "sgt",
        "capt",
        "lt",
        "rev",
        "hon",
        "gov",
        "sen",
        "rep",
        "a.m",
        "p.m",
        "u.s",
        "u.k",
        "ph.d",
        "b.a",
        "m.a",
    ]
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
    """Where sentences, paragraphs and code blocks end."""
    in_code = False
    position = 0
    while match := _BOUNDARY.search(text, position):
        position = match.end()
        if match["fence"] or match["open"]:
            in_code = not in_code
            if match["fence"] and not in_code:
                yield match.end()
        elif not in_code and not (match["ender"] == "." and _continues(text, match.start())):
            yield match.end()


def _continues(text: str, dot: int) -> bool:
    """Whether the full stop at `dot` belongs to an abbreviation, an initial or a list number."""
    before = text[max(0, dot - _LOOK_BACK) : dot]
    match = _LAST_WORD.search(before)
    word = match.group() if match else ""
    if word.lower() in _ABBREVIATIONS or _INITIAL.match(word):
        return True
    return bool(_LIST_NUMBER.search(before)) and (dot <= _LOOK_BACK or "\n" in before)
