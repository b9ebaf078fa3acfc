from __future__ import annotations

from workers.partial_output import MAX_CHARACTERS, PERIOD_S, PartialOutput


class Sent:
    def __init__(self) -> None:
        self.now = 100.0
        self.pieces: list[tuple[int, str]] = []
        self.output = PartialOutput(lambda start, text: self.pieces.append((start, text)), lambda: self.now)


def test_the_first_piece_goes_out_at_once() -> None:
    sent = Sent()
    sent.output.add("one ")
    assert sent.pieces == [(0, "one ")]


def test_pieces_in_quick_succession_go_out_together() -> None:
    sent = Sent()
    for text in ("one ", "two ", "three "):
        sent.output.add(text)
    sent.now += 2 * PERIOD_S
    sent.output.add("four")
    assert sent.pieces == [(0, "one "), (4, "two three four")]


def test_no_more_than_the_limit_goes_out() -> None:
    sent = Sent()
    for _ in range(5):
        sent.now += 2 * PERIOD_S
        sent.output.add("x" * (MAX_CHARACTERS // 2 - 1))
    assert sum(len(text) for _, text in sent.pieces) == MAX_CHARACTERS
    assert [start for start, _ in sent.pieces] == [0, MAX_CHARACTERS // 2 - 1, MAX_CHARACTERS - 2]
