"""The profile of a step accounts for all of it, and leaves the engine as it was."""

from __future__ import annotations

import pytest

from bench.step import run
from engine import messages as m
from engine.model.sampler import Sampled

PARTS = ("plan_s", "batch_s", "runner_python_s", "model_s", "sampling_s", "commit_s", "encode_s", "other_s")


def test_the_parts_of_a_step_are_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIDSTREAM_KV_TOKENS", "2048")
    original, encode = Sampled.read, m.encode_output
    (profile,) = run((2,), 1, lambda line: None)
    assert profile["sequences"] == 2
    assert profile["steps"] == 1
    assert sum(profile[part] for part in PARTS) == pytest.approx(profile["total_s"])
    rest = profile["total_s"] - profile["model_s"] - profile["sampling_s"]
    assert profile["overhead_s"] == pytest.approx(rest)
    assert all(profile[part] >= 0 for part in PARTS)
    read = profile["weight_bytes"] + profile["kv_bytes"]
    assert profile["model_bytes_per_s"] == pytest.approx(read / profile["model_s"])
    assert (Sampled.read, m.encode_output) == (original, encode)
