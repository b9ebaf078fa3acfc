from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from realtime.stop_strings import StopStrings

texts = st.text("ab<", max_size=12)
stop_lists = st.lists(st.text("ab<", min_size=1, max_size=4), max_size=4)


def cut(stops: list[str], *parts: str) -> tuple[str, bool]:
    found = StopStrings(stops)
    text = "".join(found.feed(part) for part in parts) + found.finish()
    return text, found.stopped


def expected(stops: list[str], text: str) -> tuple[str, bool]:
    """By definition: the shortest beginning of `text` that ends with a stop, less that stop."""
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))], True
    return text, False


@settings(max_examples=500, deadline=None)
@given(stops=stop_lists, text=texts, data=st.data())
def test_every_split_ends_where_the_definition_says(stops: list[str], text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    split = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert cut(stops, *split) == cut(stops, *text) == cut(stops, text) == expected(stops, text)


@settings(max_examples=300, deadline=None)
@given(stops=stop_lists, text=texts)
def test_only_what_may_begin_a_stop_is_held_back(stops: list[str], text: str) -> None:
    found = StopStrings(stops)
    out = ""
    for char in text:
        out += found.feed(char)
        if found.stopped:
            break
        held = text[len(out) : len(out) + found.held]
        assert not held or any(stop.startswith(held) for stop in stops)


@pytest.mark.parametrize(
    ("stops", "text", "result"),
    [
        (["\n\n"], "One.\n\nTwo.", "One."),
        (["END"], "The E", "The E"),
        (["aab"], "aaab", "a"),
        (["b", "abcd"], "xabcd", "xa"),
        ([], "all", "all"),
    ],
)
def test_texts_end_before_their_stop(stops: list[str], text: str, result: str) -> None:
    assert cut(stops, *text)[0] == result


def test_nothing_comes_after_a_stop() -> None:
    found = StopStrings(["."])
    assert found.feed("Yes. No") == "Yes"
    assert (found.feed(" more"), found.finish(), found.held) == ("", "", len(". No more"))
