"""What a built wheel holds."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ["bench", "engine", "launch", "realtime", "static", "templates", "web", "workers"]


def test_a_wheel_holds_every_file_that_is_read_at_run_time(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = "from setuptools.build_meta import build_wheel; build_wheel('.')"
    subprocess.run([sys.executable, "-c", build], cwd=source, check=True, capture_output=True, timeout=120)
    (wheel,) = source.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
    kept = {path.relative_to(ROOT).as_posix() for folder in FOLDERS for path in (ROOT / folder).rglob("*")}
    wanted = {path for path in kept if path.endswith((".py", ".h", ".cpp", ".sh", ".js", ".css", ".svg", ".html"))}
    assert wanted <= packed
    assert not [name for name in packed if name.startswith("tests/")]
