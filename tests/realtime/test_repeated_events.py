"""A post that Redis took twice is obeyed once."""

from __future__ import annotations

import msgspec

from realtime.actor import Actor
from realtime.messages import ClientEvent


def event(connection: str, number: int) -> ClientEvent:
    return ClientEvent("s", connection, msgspec.Raw(b"{}"), 0.0, 0.0, "w", number)


def test_the_same_number_of_a_connection_counts_once() -> None:
    actor = Actor.__new__(Actor)
    actor._numbers = {}
    sent = [event("a", 1), event("a", 2), event("a", 1), event("a", 2), event("b", 1), event("a", 3)]
    assert [actor._is_repeated(message) for message in sent] == [False, False, True, True, False, False]


def test_events_without_a_number_are_never_repetitions() -> None:
    actor = Actor.__new__(Actor)
    actor._numbers = {}
    assert not any(actor._is_repeated(event("a", 0)) for _ in range(3))
