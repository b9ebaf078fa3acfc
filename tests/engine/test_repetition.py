"""The index against a search through the text."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from engine.repetition import Repetition

TEXT = st.lists(st.integers(0, 2), max_size=40)
FEW = 8
"""So many of the last places are looked at, of what was given and of what has grown."""


def searched(text: list[int], tail: list[int], places: range) -> list[tuple[int, int]]:
    """(Length of the match, place) of the last few places in `places` that follow the last two tokens of `tail`."""
    found = [place for place in places if text[place - 2 : place] == tail[-2:]][-FEW:]
    return [(next(n for n in (4, 3, 2) if _is_match(text, p, tail, n)), p) for p in found]


def _is_match(text: list[int], place: int, tail: list[int], length: int) -> bool:
    return min(place, len(tail)) >= length and text[place - length : place] == tail[-length:]


@example([0, 0, 0, 0], 0, [0, 0])
@given(TEXT, st.integers(0, 40), TEXT.filter(lambda tail: len(tail) >= 2))
def test_it_finds_what_a_search_finds(text: list[int], given: int, tail: list[int]) -> None:
    """However much of the text was there at first; the longest match, then the last."""
    index = Repetition(text[:given])
    begun = max(len(text[:given]), 2)
    for length in range(begun, max(len(text), begun) + 1):
        told = text[:length]
        index.grow(told)
        for end in (tail[-4:], told[-4:]):
            if len(end) >= 2:
                matches = searched(told, end, range(2, begun)) + searched(told, end, range(begun, len(told)))
                assert index.find(told, end) == (max(matches)[1] if matches else None)


def test_large_ids_and_far_places_stay_apart() -> None:
    large = (1 << 21) - 1
    text = [large, 0, 1, 0, large, 2, *range(3, 200_000)]
    index = Repetition(text)
    assert index.find(text, [large, 0]) == 2
    assert index.find(text, [0, large]) == 5
    assert index.find(text, [199_997, 199_998]) == len(text) - 1
    assert index.find(text, [1, 1]) is None
