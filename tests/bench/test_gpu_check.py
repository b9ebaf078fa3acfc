"""The script for owners of a GPU: that it works from end to end, and that one part's end is not that of the others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.gpu_check import LIMITS_S, TARGETS, WHOLE_S, run_part, summary

ROOT = Path(__file__).parents[2]


def test_a_dry_run_passes_and_reports_every_figure(tmp_path: Path) -> None:
    report_file = tmp_path / "report.json"
    command = ["bench/gpu_check.sh", "--dry-run", "--json", str(report_file)]
    environment = os.environ | {"PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(report_file.read_text())
    assert [(name, part["ok"]) for name, part in report["parts"].items()] == [(name, True) for name in LIMITS_S]
    assert report["summary"].keys() == TARGETS.keys()
    assert all(figure > 0 for figure in report["summary"].values())


def test_the_limits_of_the_parts_fit_the_whole() -> None:
    assert sum(LIMITS_S.values()) <= WHOLE_S <= 480


def test_a_part_that_fails_keeps_what_it_found_and_says_why() -> None:
    code = "from bench.gpu_check import emit; emit('rate', 2.5); print('noise'); raise SystemExit('no such kernel')"
    part = run_part([sys.executable, "-c", code], 60, lambda line: None)
    assert (part["ok"], part["rate"]) == (False, 2.5)
    assert "no such kernel" in part["error"]


def test_a_part_that_hangs_is_killed() -> None:
    said: list[str] = []
    code = "from bench.gpu_check import emit; emit('rate', 2.5); import signal; signal.pause()"
    part = run_part([sys.executable, "-c", code], 5, said.append)
    assert (part["ok"], part["rate"]) == (False, 2.5)
    assert "killed after 5 s" in part["error"]
    assert said == ['  {"rate": 2.5}']


def test_the_summary_compares_with_transformers() -> None:
    native = {"decode_tokens_per_s": 200.0, "prefill_s": 0.5, "decode_share": 0.8, "prefill_share": 0.6}
    figures = summary({"native": native, "transformers": {"decode_tokens_per_s": 100.0, "prefill_s": 1.0}})
    assert figures == pytest.approx(
        {"decode_share": 0.8, "prefill_share": 0.6, "decode_x_transformers": 2.0, "prefill_x_transformers": 2.0}
    )
    assert summary({"native": {"ok": False}}) == {}
