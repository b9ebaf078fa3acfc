"""Thousands of random verbs lose nothing. `midstream bench verbs` does a hundred thousand."""

from __future__ import annotations

import pytest

from bench.verbs import run


@pytest.mark.parametrize("seed", [1, 2])
def test_random_verbs_with_random_cancels_lose_no_block(seed: int) -> None:
    report = run(2500, seed)
    assert report["leaked"] == 0
    assert report["idle_points"] > 10
    # What the test is about must have happened.
    for kind in ("generations", "cancelled", "refused", "preemptions", "prefix_hit_tokens", "accepted_tokens"):
        assert report[kind] > 5, kind
    for kind in ("recomputed_tokens", "swapped_out_tokens", "swapped_in_tokens"):
        assert report[kind] > 20, kind
