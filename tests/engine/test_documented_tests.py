"""Every test that docs/engine.md names exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
_NAME = re.compile(r"`((?:[\w/]+\.py)?(?:::)?(?:test_\w+)?)`")


def names_in(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_complaint_has_tests_that_exist() -> None:
    """In the table a name without a file is in the file named before it."""
    text = (ROOT / "docs" / "engine.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("|") and "#" in line]
    assert len(rows) > 10
    for row in rows:
        names = [name for name in _NAME.findall(row.split("|")[2]) if name]
        assert names, f"no test in: {row}"
        path = ROOT
        for name in names:
            file, test = (name.split("::") + [""])[:2] if ".py" in name else ("", name)
            if file:
                path = ROOT / file if "/" in file else ROOT / "tests" / "engine" / file
                assert path.is_file(), name
            assert not test or test in names_in(path), name
