from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from launch.children import Role, children
from launch.data_folder import DataFolder
from launch.serve import serve
from launch.settings import LaunchSettings

LIMIT_S = 30


class Launcher:
    """`midstream serve --role worker` that has said it is ready."""

    def __init__(self, data: Path, redis_url: str) -> None:
        code = "from launch.cli import main; main()"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, "serve", "--role", "worker", "--data", str(data)],
            env={**os.environ, "MIDSTREAM_REDIS_URL": redis_url},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        lines = []
        for line in self.process.stdout:
            lines.append(line)
            if line.startswith("Midstream worker is ready"):
                break
        self.log = "".join(lines)

    def descendants(self) -> list[psutil.Process]:
        found: list[psutil.Process] = psutil.Process(self.process.pid).children(recursive=True)
        return found


def all_gone(processes: list[psutil.Process]) -> bool:
    deadline = time.monotonic() + LIMIT_S
    while any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in processes):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def names(role: Role, data: Path, **settings: Any) -> list[str]:
    return [spec.name for spec in children(role, LaunchSettings(**settings), DataFolder(data), None)]


def test_each_role_runs_its_part(data: Path) -> None:
    assert names(Role.ALL, data) == ["engine", "host", "worker", "web"]
    assert names(Role.NODE, data) == ["engine", "host"]
    assert names(Role.WEB, data) == ["web"]
    assert names(Role.WORKER, data) == ["worker"]


def test_children_are_told_where_redis_and_engine_are(data: Path) -> None:
    settings = LaunchSettings(redis_url="redis://example:1", node_id="node-7")
    host = next(spec for spec in children(Role.NODE, settings, DataFolder(data), None) if spec.name == "host")
    assert host.env["MIDSTREAM_REDIS_URL"] == "redis://example:1"
    assert host.env["MIDSTREAM_NODE_ID"] == "node-7"
    assert host.env["MIDSTREAM_ENGINE_SOCKET"] == str(data.resolve() / "run" / "engine.sock")


def test_a_taken_port_is_a_clear_error(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert serve(Role.ALL, LaunchSettings(data=data, port=port)) == 1
    assert f"127.0.0.1:{port} is not free" in capsys.readouterr().out


def test_a_model_that_is_nowhere_is_a_clear_error(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MIDSTREAM_MODEL", "/no/such/model")
    assert serve(Role.NODE, LaunchSettings(data=data, redis_url="unix:///nowhere")) == 1
    assert "no such model folder" in capsys.readouterr().out


def test_one_part_alone_needs_a_redis(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert serve(Role.WORKER, LaunchSettings(data=data)) == 1
    assert "set MIDSTREAM_REDIS_URL" in capsys.readouterr().out


def test_a_data_folder_in_use_is_a_clear_error(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launch.data_folder.LOCK_PATIENCE_S", 0.1)
    other = DataFolder(data)
    other.lock()
    assert serve(Role.ALL, LaunchSettings(data=data, port=0)) == 1
    assert "another Midstream server is using" in capsys.readouterr().out
    other.unlock()


def test_ctrl_c_stops_everything(data: Path, redis_url: str) -> None:
    launcher = Launcher(data, redis_url)
    processes = launcher.descendants()
    assert "worker │ READY" in launcher.log
    assert len(processes) == 3  # the worker and its pool
    launcher.process.send_signal(signal.SIGINT)
    rest, _ = launcher.process.communicate(timeout=LIMIT_S)
    assert launcher.process.returncode == 0
    assert rest.endswith("Stopped.\n")
    assert all_gone(processes)


def test_a_killed_launcher_leaves_no_orphan(data: Path, redis_url: str) -> None:
    launcher = Launcher(data, redis_url)
    processes = launcher.descendants()
    launcher.process.kill()
    launcher.process.communicate(timeout=LIMIT_S)
    assert all_gone(processes)
