"""Thousands of random verbs lose nothing. `midstream bench verbs` does a hundred thousand, with ten thousand aborts."""

from __future__ import annotations

import pytest

from bench.verbs import run


@pytest.mark.parametrize("seed", [1, 2])
def test_random_verbs_with_random_aborts_leave_nothing_held(seed: int) -> None:
    report = run(2500, seed, aborts=250)
    left = {report[kind] for kind in ("leaked", "leaked_slots", "open_moves", "open_holds")}
    assert left == {0}
    assert report["idle_points"] > 10
    # What the test is about must have happened.
    assert report["aborts"] >= 250
    assert report["aborts_by"].keys() == {"cancel", "truncate", "close", "disconnect"}
    assert report["aborts_while"].keys() >= {"in the prompt", "generating", "held", "reading partial output"}
    assert report["aborts_while"].keys() >= {"moving out", "moving in", "waiting to be restored"}
    for kind in ("generations", "cancelled", "refused", "preemptions", "prefix_hit_tokens", "accepted_tokens"):
        assert report[kind] > 5, kind
    for kind in ("recomputed_tokens", "swapped_out_tokens", "swapped_in_tokens"):
        assert report[kind] > 20, kind
