"""The Hermes tool format, taught in the system prompt of models whose template has no tools of its own."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from realtime.tool_calls import CLOSE, OPEN


def _no_parameters() -> dict[str, Any]:
    return {"type": "object", "properties": {}}


@dataclass(frozen=True)
class ToolSpec:
    """What the model is told about a tool. `parameters` is a JSON schema."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = field(default_factory=_no_parameters)

    def to_schema(self) -> dict[str, Any]:
        """The nested form that chat templates expect."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}


def teach(tools: list[ToolSpec]) -> str:
    """The paragraph about `tools` at the end of the system prompt; the same bytes for the same tools."""
    schemas = "\n".join(json.dumps(tool.to_schema(), ensure_ascii=False) for tool in tools)
    return (
        "# Tools\n"
        "These functions are available, one JSON schema a line:\n"
        f"<tools>\n{schemas}\n</tools>\n"
        "To use one, answer with its name and arguments as JSON inside tool_call tags:\n"
        f'{OPEN}\n{{"name": "function-name", "arguments": {{"argument": "value"}}}}\n{CLOSE}\n'
        "Its result comes in the next message, inside tool_response tags."
    )


def call_prefix(name: str) -> str:
    """A call up to its arguments."""
    return f"{OPEN}\n{call_object_prefix(name)}"


def call_object_prefix(name: str) -> str:
    """The beginning of a call's JSON. No space at the end: in natural tokens it belongs to what follows."""
    return f'{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments":'


def call_schema(tools: list[ToolSpec]) -> str:
    """The JSON schema of a call of one of these tools. A whole call, because the last token of good arguments often
    closes the call too."""
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": tool.name}, "arguments": tool.parameters},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for tool in tools
    ]
    return json.dumps(calls[0] if len(calls) == 1 else {"anyOf": calls})


CALL_SUFFIX = f"\n{CLOSE}"


def tool_response(result: str) -> str:
    """A result as the content of a user turn."""
    return f"<tool_response>\n{result}\n</tool_response>"
