from __future__ import annotations

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator, ValidationError

from realtime.hermes import ToolSpec, call_schema

NESTED: dict[str, Any] = {
    "$defs": {"Point": {"type": "object", "properties": {"next": {"$ref": "#/$defs/Point"}, "x": {"type": "integer"}}}},
    "type": "object",
    "properties": {"start": {"$ref": "#/$defs/Point"}, "$ref": {"type": "string"}},
    "required": ["start"],
}


@pytest.mark.parametrize("others", [[], [ToolSpec("other")]])
def test_references_within_a_tools_parameters_survive_in_the_schema_of_the_call(others: list[ToolSpec]) -> None:
    validator = Draft202012Validator(json.loads(call_schema([*others, ToolSpec("draw", "", NESTED)])))

    validator.validate({"name": "draw", "arguments": {"start": {"x": 1, "next": {"x": 2}}, "$ref": "#"}})
    with pytest.raises(ValidationError):
        validator.validate({"name": "draw", "arguments": {"start": {"x": 1, "next": {"x": "two"}}}})
