"""A profile of a tiny model, measured and kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.profile import profile_path, run
from engine.interception.profile import load
from tests.engine.conftest import save_tiny


def test_a_profile_is_measured_fitted_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tiny").mkdir()
    settings = {
        "MODEL": save_tiny("llama", tmp_path / "tiny"),
        "MODEL_CACHE": tmp_path / "cache",
        "RUNNER": "transformers",
        "KV_TOKENS": 512,
        "HOST_KV_TOKENS": 128,
    }
    for name, value in settings.items():
        monkeypatch.setenv(f"MIDSTREAM_{name}", str(value))
    lines: list[str] = []
    report, path = run(1, lines.append)
    assert load(path) == report.profile
    assert path.parent == tmp_path / "cache" / "profiles"
    assert {step.query_tokens for step in report.steps} >= {1, 64, 256}
    assert [move.tokens for move in report.moves_out] == [move.tokens for move in report.moves_in] == [16, 64]
    assert not report.modelled_link
    assert lines


def test_a_profile_has_a_file_name_whatever_its_model_is_called(tmp_path: Path) -> None:
    path = profile_path(tmp_path, "../some org/model name-cpu-bfloat16-q4")
    assert path.parent == tmp_path / "profiles"
    assert path.name == "..-some-org-model-name-cpu-bfloat16-q4.json"
