"""The virtual typing clock: what it lets pass and what it skips."""

from __future__ import annotations

from typing import Any

import pytest

from bench.typing.clock import PAUSE_S, PROBE_S, Watch
from bench.typing.script import Edit

SPACE = Edit(0, 5, 5, " ")
LETTER = Edit(0, 6, 6, "a")


def acknowledged(*events: dict[str, Any]) -> Watch:
    """One edit was sent at 100 s and acknowledged at 100.01 s; the events came at 100.02 s."""
    watch = Watch(sent=1)
    watch.event({"type": "input_text_buffer.updated", "revision": 1}, 100.01)
    for event in events:
        watch.event(event, 100.02)
    return watch


def test_the_gap_passes_until_the_edit_is_acknowledged() -> None:
    assert Watch(sent=1).due_at(SPACE, 100, 0.25, False) == 100.25
    assert Watch(sent=1).due_at(LETTER, 100, 0.25, True) == 100.25


def test_the_rest_of_a_gap_is_skipped_when_nothing_is_heard() -> None:
    assert acknowledged().due_at(SPACE, 100, 0.25, False) == pytest.approx(100.01 + PROBE_S)


def test_a_gap_is_never_longer_than_it_is() -> None:
    assert acknowledged().due_at(SPACE, 100, 0.03, False) == 100.03


def test_each_step_of_prefill_may_have_a_successor() -> None:
    watch = acknowledged({"type": "midstream.prefill"})
    assert watch.due_at(SPACE, 100, 0.25, False) == pytest.approx(100.02 + PROBE_S)


def test_slow_steps_are_waited_for_longer() -> None:
    watch = acknowledged({"type": "midstream.trace", "engine_started_at": 5.0, "engine_ended_at": 5.1})
    assert watch.quiet_at() == pytest.approx(100.22)


def test_a_note_takes_real_time() -> None:
    watch = acknowledged({"type": "midstream.inference.started", "index": 0})
    assert watch.quiet_at() is None
    assert watch.due_at(SPACE, 100, 3, False) == 103
    assert watch.due_at(LETTER, 100, 0.25, False) == 100.25
    watch.event({"type": "midstream.inference.delta", "index": 0, "delta": "x"}, 100.5)
    assert watch.quiet_at() is None
    watch.event({"type": "midstream.inference.done", "index": 0}, 101)
    assert watch.quiet_at() == pytest.approx(101 + PROBE_S)


def test_only_the_running_note_ends() -> None:
    watch = acknowledged({"type": "midstream.inference.started", "index": 2})
    watch.event({"type": "midstream.inference.discarded", "index": 1}, 100.1)
    assert watch.quiet_at() is None
    watch.event({"type": "midstream.inference.discarded", "index": 2}, 100.1)
    assert watch.quiet_at() is not None


def test_a_draft_runs_until_the_text_changes() -> None:
    watch = acknowledged({"type": "midstream.draft.started"})
    assert watch.due_at(SPACE, 100, 9, False) == 109
    watch.event({"type": "midstream.draft.discarded"}, 100.4)
    assert watch.quiet_at() == pytest.approx(100.4 + PROBE_S)


def test_in_a_pause_the_timers_of_the_server_may_fire() -> None:
    assert acknowledged().due_at(SPACE, 100, 2, False) == 100 + PAUSE_S
    assert acknowledged().due_at(LETTER, 100, 2, True) == 100 + PAUSE_S


def test_letters_inside_a_word_follow_at_once_when_it_was_quiet() -> None:
    assert acknowledged().due_at(LETTER, 100, 0.25, True) == 100
    assert acknowledged().due_at(LETTER, 100, 0.25, False) > 100


@pytest.mark.parametrize("edit", [Edit(0, 3, 4, "a"), Edit(0, 3, 3, "ab"), Edit(0, 3, 4, ""), Edit(0, 3, 3, "語")])
def test_other_edits_are_looked_after(edit: Edit) -> None:
    assert acknowledged().due_at(edit, 100, 0.25, True) > 100


def test_events_of_no_concern_are_no_sign_of_work() -> None:
    watch = acknowledged()
    watch.event({"type": "midstream.strategy"}, 105)
    watch.event({"type": "midstream.trace", "response_id": "r"}, 105)
    assert watch.quiet_at() == pytest.approx(100.01 + PROBE_S)
