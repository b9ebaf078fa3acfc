from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from launch.cli import Check, app
from launch.doctor import all_checks
from launch.settings import LaunchSettings

runner = CliRunner()


@pytest.mark.parametrize("command", [[], ["serve"], ["prepare"], ["doctor"], ["chat"]])
def test_every_command_explains_itself(command: list[str]) -> None:
    result = runner.invoke(app, [*command, "--help"])
    assert result.exit_code == 0
    assert "--help" in result.stdout


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MIDSTREAM_PORT", "eighty"),
        ("MIDSTREAM_KV_TOKENS", "many"),
        ("MIDSTREAM_MAX_NOTES", "-1"),
        ("MIDSTREAM_WORKER_LOG_LEVEL", "LOUD"),
        ("MIDSTREAM_PING_S", "0"),
    ],
)
def test_a_wrong_setting_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    result = runner.invoke(app, ["serve"])
    assert result.exit_code == 2
    assert name in result.stderr


def test_options_win_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIDSTREAM_PORT", "70000")
    assert runner.invoke(app, ["doctor", "--only", "python", "--port", "1"]).exit_code == 0


def test_every_check_can_be_named(tmp_path: Path) -> None:
    assert [check.value for check in Check] == list(all_checks(LaunchSettings(data=tmp_path)))
