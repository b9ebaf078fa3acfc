"""Where in a text the last tokens of a text stood before: the index behind prompt lookup.

Each place is a number whose high bits are the two tokens before it and whose low bits are the place itself; sorted, the
places after one pair are neighbours in the order of the text. For a prompt that is one vectorised sort.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence

import numpy as np

SHORTEST, LONGEST = 2, 4
"""Tokens that have to be equal, and the most that are compared."""
_CANDIDATES = 8
_BITS = 21
_PLACE = (1 << _BITS) - 1


class Repetition:
    """The places of one text, which may grow. Token ids and lengths are below 2 ** 21."""

    def __init__(self, text: Sequence[int] = ()) -> None:
        tokens = np.array(text, dtype=np.int64)
        first, second = tokens[: -SHORTEST or None], tokens[1:-1]
        places = np.arange(SHORTEST, max(len(tokens), SHORTEST))
        packed = (first[: len(places)] << 2 * _BITS) | (second << _BITS) | places
        packed.sort()
        self._given: list[int] = packed.tolist()
        self._grown: list[int] = []
        self._end = max(len(text), SHORTEST)

    def grow(self, text: Sequence[int]) -> None:
        """`text` is the one known so far and what came after it."""
        for place in range(self._end, len(text)):
            insort(self._grown, _pair(text, place) | place)
        self._end = max(self._end, len(text))

    def find(self, text: Sequence[int], tail: Sequence[int]) -> int | None:
        """Where `text`, this index's own, goes on after the longest end of `tail` that stands in it: of equally long
        ones the last, among the last few places. None if not even two tokens do."""
        if len(tail) < SHORTEST:
            return None
        pair = _pair(tail, len(tail))
        found, longest = None, SHORTEST - 1
        for places in (self._grown, self._given):
            end = bisect_right(places, pair | _PLACE)
            for packed in reversed(places[max(end - _CANDIDATES, 0) : end]):
                if packed < pair:
                    break
                place = packed & _PLACE
                length = _equal(text, place, tail)
                if length > longest:
                    found, longest = place, length
                if length == LONGEST:
                    return found
        return found


def _pair(text: Sequence[int], place: int) -> int:
    return text[place - 2] << 2 * _BITS | text[place - 1] << _BITS


def _equal(text: Sequence[int], place: int, tail: Sequence[int]) -> int:
    """How many tokens before `place` are the last of `tail`; two of them are."""
    most = min(LONGEST, place, len(tail))
    return next((n for n in range(SHORTEST, most) if text[place - n - 1] != tail[-n - 1]), most)
