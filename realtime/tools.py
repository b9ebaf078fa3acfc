"""The tools that this server runs itself: what the model and the session host know about them.

How they do their work is in `workers/`; the host never imports that.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

SERVER_LABEL = "midstream"


@dataclass(frozen=True)
class ServerTool:
    """`parameters` is a JSON schema. An `idempotent` tool may be run again when its worker died. A `speculative` one
    may be run for text that is not sent yet: it is local, nobody else can notice it, and its result is as good minutes
    later. `estimate` says how many seconds a call with these (unchecked) arguments will last, where that can be said.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    idempotent: bool
    time_limit_s: float
    speculative: bool = False
    estimate: Callable[[dict[str, Any]], float | None] = lambda arguments: None

    def expected_s(self, arguments: str) -> float | None:
        """How long a call with these arguments (JSON) will last; None: nobody knows."""
        try:
            decoded = json.loads(arguments)
            return self.estimate(decoded) if isinstance(decoded, dict) else None
        except (ValueError, RecursionError):
            return None


def _seconds(arguments: dict[str, Any]) -> float | None:
    seconds = arguments.get("seconds")
    return float(min(max(0, seconds), 60)) if isinstance(seconds, int | float) else None


CALCULATOR = ServerTool(
    name="calculator",
    description="Evaluates one arithmetic expression exactly, for example 1234*5678 or sqrt(2)/3.",
    parameters={
        "type": "object",
        "properties": {
            "expression": {
                "type": "string",
                # For constrained decoding: without it the 135M model may begin with a brace and never end.
                "pattern": "^[-+(0-9a-z][-+*/%^(),. 0-9a-z×÷]*$",
                "description": "Numbers, + - * / // % ** and parentheses; sqrt, abs, round, min, max.",
            }
        },
        "required": ["expression"],
        "additionalProperties": False,
    },
    idempotent=True,
    time_limit_s=5.0,
    speculative=True,
)

WAIT = ServerTool(
    name="wait",
    description="Waits the given number of seconds, then answers.",
    parameters={
        "type": "object",
        "properties": {
            "seconds": {"type": "number", "minimum": 0, "maximum": 60, "description": "How long to wait, 0 to 60."}
        },
        "required": ["seconds"],
        "additionalProperties": False,
    },
    idempotent=True,
    time_limit_s=65.0,
    speculative=True,
    estimate=_seconds,
)

SERVER_TOOLS: dict[str, ServerTool] = {tool.name: tool for tool in (CALCULATOR, WAIT)}
