"""The `wait` tool: sleeps, reports once a second, stops when the call is cancelled. For demonstrations and tests."""

from __future__ import annotations

import time
from typing import Any

from workers.tool import ToolContext, ToolError

CANCEL_CHECK_S = 0.2
REPORT_S = 1.0


def run(arguments: dict[str, Any], context: ToolContext) -> str:
    """Raises `ToolError` when cancelled."""
    seconds = float(arguments["seconds"])
    started = time.monotonic()
    reported = 0.0
    while (elapsed := time.monotonic() - started) < seconds:
        if context.cancelled():
            raise ToolError("cancelled")
        if elapsed - reported >= REPORT_S:
            reported = elapsed
            context.progress(round(elapsed), seconds, f"waited {round(elapsed)} of {seconds:g} s")
        time.sleep(min(CANCEL_CHECK_S, seconds - elapsed))
    return f"Waited {seconds:g} s."
