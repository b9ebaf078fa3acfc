from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest

from launch import data_folder
from launch.data_folder import MAX_SOCKET_PATH, DataFolder, DataFolderInUse


def test_only_the_owner_can_read_the_folder(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path / "a" / "b")
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    assert folder.run.is_dir()


def test_a_second_server_is_refused_until_the_first_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_folder, "LOCK_PATIENCE_S", 0.1)
    first, second = DataFolder(tmp_path), DataFolder(tmp_path)
    first.lock()
    with pytest.raises(DataFolderInUse, match="another Midstream server is using"):
        second.lock()
    first.unlock()
    second.lock()
    second.unlock()


def test_the_folder_stays_locked_while_a_program_that_got_the_lock_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_folder, "LOCK_PATIENCE_S", 0.1)
    first, second = DataFolder(tmp_path), DataFolder(tmp_path)
    first.lock()
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=(first.lock_fd,)) as program:
        first.unlock()
        with pytest.raises(DataFolderInUse):
            second.lock()
        program.communicate()
    second.lock()
    second.unlock()


def test_a_socket_lies_in_the_folder(tmp_path: Path) -> None:
    if len(os.fsencode(tmp_path)) < MAX_SOCKET_PATH - 20:
        assert DataFolder(tmp_path).socket_path("a.sock") == tmp_path / "run" / "a.sock"


def test_a_socket_of_a_deep_folder_has_a_short_path_of_its_own(tmp_path: Path) -> None:
    deep = DataFolder(tmp_path / ("x" * 100))
    path = deep.socket_path("a.sock")
    try:
        assert len(os.fsencode(path)) <= MAX_SOCKET_PATH
        assert path == DataFolder(deep.path).socket_path("a.sock")
        assert path != DataFolder(tmp_path / ("y" * 100)).socket_path("a.sock")
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    finally:
        path.parent.rmdir()
        DataFolder(tmp_path / ("y" * 100)).socket_path("a.sock").parent.rmdir()
