from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from realtime.errors import ProtocolError
from realtime.input_buffer import MAX_BYTES, InputBuffer, RevisionConflict

TEXT = "a😀é日👍🏽"
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


def filled(text: str, offsets: Literal["utf16", "code_points"] = "utf16") -> InputBuffer:
    buffer = InputBuffer(offsets)
    buffer.append(text)
    return buffer


def utf16_length(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2


def test_each_edit_raises_the_revision_by_one() -> None:
    buffer = InputBuffer()
    buffer.append("Hello", base_revision=0)
    buffer.replace("J", 0, 1, base_revision=1)
    buffer.append("!", base_revision=2)
    assert (buffer.text, buffer.revision) == ("Jello!", 3)
    buffer.clear(base_revision=3)
    assert (buffer.text, buffer.revision, buffer.length) == ("", 4, 0)


@given(before=texts, cut=texts, after=texts, new=texts, unit=st.sampled_from(["utf16", "code_points"]))
def test_a_replace_splices_at_offsets_of_the_unit(before: str, cut: str, after: str, new: str, unit: str) -> None:
    offsets: Literal["utf16", "code_points"] = "utf16" if unit == "utf16" else "code_points"
    measure = utf16_length if offsets == "utf16" else len
    buffer = filled(before + cut + after, offsets)
    buffer.replace(new, measure(before), measure(before + cut))
    assert buffer.text == before + new + after
    assert buffer.length == measure(buffer.text)


def test_a_replace_without_a_range_replaces_all_and_with_one_end_the_rest() -> None:
    buffer = filled("one two")
    buffer.replace("2", start=4)
    assert buffer.text == "one 2"
    buffer.replace("1", end=3)
    assert buffer.text == "1 2"
    buffer.replace("new")
    assert buffer.text == "new"


@pytest.mark.parametrize(
    ("start", "end", "param"), [(2, 3, "start"), (0, 2, "end"), (0, 99, "end"), (-1, 1, "start"), (3, 1, "start")]
)
def test_bad_offsets_are_refused(start: int, end: int, param: str) -> None:
    buffer = filled(TEXT)
    with pytest.raises(ProtocolError) as caught:
        buffer.replace("x", start, end)
    assert (caught.value.code, caught.value.param) == ("invalid_value", param)
    assert (buffer.text, buffer.revision) == (TEXT, 1)


def test_another_base_revision_is_a_conflict_that_tells_the_servers() -> None:
    buffer = filled("a")
    for edit in (
        lambda: buffer.append("b", base_revision=0),
        lambda: buffer.replace("b", base_revision=0),
        lambda: buffer.clear(base_revision=2),
        lambda: buffer.commit(base_revision=0),
    ):
        with pytest.raises(RevisionConflict, match="revision 1") as caught:
            edit()
        assert (caught.value.code, caught.value.revision) == ("revision_conflict", 1)
    assert (buffer.text, buffer.revision) == ("a", 1)


def test_a_commit_empties_the_buffer() -> None:
    buffer = filled("question")
    assert buffer.commit() == "question"
    assert (buffer.text, buffer.revision) == ("", 2)


def test_a_committed_text_wins() -> None:
    buffer = filled("questoin")
    assert buffer.commit("question", base_revision=1) == "question"


@pytest.mark.parametrize("text", ["", " \n\t"])
def test_a_commit_of_nothing_is_refused(text: str) -> None:
    buffer = filled(text)
    for given_text in (None, text):
        with pytest.raises(ProtocolError) as caught:
            buffer.commit(given_text)
        assert caught.value.code == "buffer_empty"
    assert (buffer.text, buffer.revision) == (text, 1)


def test_text_over_the_limit_is_refused_and_changes_nothing() -> None:
    full = "é" * (MAX_BYTES // 2)
    buffer = filled(full)
    for edit in (
        lambda: buffer.append("x"),
        lambda: buffer.replace("éé", 0, 1),
        lambda: buffer.replace(full + "x"),
        lambda: buffer.commit(full + "x"),
    ):
        with pytest.raises(ProtocolError) as caught:
            edit()
        assert caught.value.code == "buffer_too_large"
    assert (buffer.text, buffer.revision) == (full, 1)
    buffer.replace("xx", 0, 1)
    assert buffer.length == MAX_BYTES // 2 + 1


def test_half_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(ProtocolError, match="surrogate") as caught:
        InputBuffer().append("\ud83d")
    assert caught.value.code == "invalid_value"


def test_any_text_is_measured_in_the_offset_unit() -> None:
    assert InputBuffer().units("a\U0001f600") == 3
    assert InputBuffer("code_points").units("a\U0001f600") == 2
