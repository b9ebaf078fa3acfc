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
        "Its result comes in the next message."
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
    if len(tools) == 1:
        return json.dumps(_call_schema(tools[0], "#"))
    return json.dumps({"anyOf": _call_schemas(tools)})


def call_or_answer_schema(tools: list[ToolSpec], answer: str) -> str:
    """The same for a model that may also give an answer of the JSON schema `answer`."""
    moved = _moved(json.loads(answer), f"#/anyOf/{len(tools)}")
    return json.dumps({"anyOf": [*_call_schemas(tools), moved]}, ensure_ascii=False)


def _call_schemas(tools: list[ToolSpec]) -> list[dict[str, Any]]:
    return [_call_schema(tool, f"#/anyOf/{index}") for index, tool in enumerate(tools)]


def _call_schema(tool: ToolSpec, place: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            "name": {"const": tool.name},
            "arguments": _moved(tool.parameters, f"{place}/properties/arguments"),
        },
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _moved(schema: Any, place: str) -> Any:
    """A schema that says the same where it is no longer the root: references within it go through `place`."""
    if isinstance(schema, list):
        return [_moved(part, place) for part in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {name: _moved(part, place) for name, part in schema.items()}
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        moved["$ref"] = place + reference[1:]
    return moved


CALL_SUFFIX = f"\n{CLOSE}"


def tool_response(result: str) -> str:
    """A result as the content of a user turn, for a model that knows Hermes tools."""
    return f"<tool_response>\n{result}\n</tool_response>"


def told_result(result: str) -> str:
    """The same for a model that was just taught them: it would copy the tags."""
    return f"The tool says: {result}\n\nWhat is the answer to my question?"
