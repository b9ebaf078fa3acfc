from __future__ import annotations

import pytest

from workers.tool import ToolContext, ToolError
from workers.tools import wait


def test_a_cancelled_wait_ends() -> None:
    with pytest.raises(ToolError, match="cancelled"):
        wait.run({"seconds": 60}, ToolContext(lambda *_: None, lambda: True, lambda text: None))


def test_a_wait_of_nothing_asks_nobody() -> None:
    assert wait.run({"seconds": 0}, ToolContext(lambda *_: None, lambda: True, lambda text: None)) == "Waited 0 s."
