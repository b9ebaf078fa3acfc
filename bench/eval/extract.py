"""What an answer's text says the answer is."""

from __future__ import annotations

import re
from fractions import Fraction

_NUMBER = r"-?\$?\s?-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:\s?/\s?\d+)?|-?\$?\.\d+"
# From the surest sign to the weakest; the last match in the text counts.
_NUMBER_SIGNS = (
    re.compile(rf"####\s*({_NUMBER})"),
    re.compile(rf"boxed\{{[^\d{{}}.-]*({_NUMBER})"),
    re.compile(rf"answer\s*(?:is|=|:)+\W*?({_NUMBER})", re.IGNORECASE),
    re.compile(rf"({_NUMBER})"),
)


def number(text: str) -> str | None:
    """The last number that is called the answer, or else the last one; None without any."""
    for sign in _NUMBER_SIGNS:
        found = sign.findall(text)
        if found:
            return _plain(str(found[-1]))
    return None


def choice(text: str, letters: str) -> str | None:
    """The letter of `letters` that is called the answer; None when none is."""
    one = f"[{letters}]"
    signs = (
        rf"boxed\{{\s*(?:\\text\{{)?\(?({one})\b",
        rf"(?i:answer\s*(?:is|:)+)[\s*:\"']*(?i:option\s+)?[\s*]*\(?({one})(?:\)|\b(?![\s]+[a-z]))",
        rf"(?:\A|\n)[\s*]*\(?({one})(?:\)|[.:](?=\s|\Z)|[\s*.]*\Z)",
        rf"\(({one})\)",
    )
    for sign in signs:
        found = re.findall(sign, text)
        if found:
            return str(found[-1])
    return None


def extract(text: str, letters: str) -> str | None:
    """A letter when there are some to choose from, else a number."""
    return choice(text, letters) if letters else number(text)


def is_right(given: str | None, wanted: str) -> bool:
    """Numbers are equal when their values are: 5, 5.0 and 5.00."""
    if given is None:
        return False
    if given == wanted:
        return True
    try:
        return Fraction(given) == Fraction(wanted)
    except (ValueError, ZeroDivisionError):
        return False


def _plain(found: str) -> str:
    return re.sub(r"[\s$,]", "", found)
