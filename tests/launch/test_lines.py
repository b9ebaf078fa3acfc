from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch.lines import MAX_LINE_BYTES, Lines


def test_lines_are_joined_over_chunks() -> None:
    lines = Lines()
    assert lines.feed(b"one\ntw") == [("one", False)]
    assert lines.feed(b"o\nthree") == [("two", False)]
    assert lines.end() == [("three", False)]


def test_a_redraw_ends_a_line() -> None:
    assert Lines().feed(b"10%\r20%\r\nnext\n") == [("10%", True), ("20%", False), ("next", False)]


def test_a_line_end_cut_in_two_is_one_line_end() -> None:
    lines = Lines()
    assert [*lines.feed(b"a\r"), *lines.feed(b"\nb\n")] == [("a", False), ("b", False)]


def test_a_line_without_end_comes_in_pieces() -> None:
    assert [len(line) for line, _ in Lines().feed(b"x" * (2 * MAX_LINE_BYTES + 1))] == [MAX_LINE_BYTES] * 2


@pytest.mark.parametrize("data", [b"\xff\xfe\n", "héé\n".encode()[:2] + b"\n"])
def test_bytes_that_are_not_text_do_no_harm(data: bytes) -> None:
    assert len(Lines().feed(data)) == 1


@given(st.lists(st.text(alphabet="ab\r\n")))
def test_chunking_changes_nothing(chunks: list[str]) -> None:
    pieces = Lines()
    in_pieces = [line for chunk in chunks for line in pieces.feed(chunk.encode())] + pieces.end()
    whole = Lines()
    assert in_pieces == whole.feed("".join(chunks).encode()) + whole.end()
