"""Each server tool's specification with the function that does the work."""

from __future__ import annotations

from dataclasses import dataclass

from realtime.tools import CALCULATOR, WAIT, ServerTool
from workers.tool import Run
from workers.tools import calculator, wait


@dataclass(frozen=True)
class Tool:
    spec: ServerTool
    run: Run


TOOLS: dict[str, Tool] = {
    CALCULATOR.name: Tool(CALCULATOR, calculator.run),
    WAIT.name: Tool(WAIT, wait.run),
}
