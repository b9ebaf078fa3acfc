from __future__ import annotations

from jsonschema import Draft202012Validator

from realtime.tool_queue import VISIBILITY_TIMEOUT_S
from realtime.tools import SERVER_TOOLS
from workers.registry import TOOLS


def test_every_server_tool_has_an_implementation() -> None:
    assert {name: tool.spec for name, tool in TOOLS.items()} == SERVER_TOOLS


def test_every_parameter_schema_is_valid() -> None:
    for tool in SERVER_TOOLS.values():
        Draft202012Validator.check_schema(tool.parameters)


def test_no_tool_runs_so_long_that_its_task_is_delivered_again() -> None:
    assert max(tool.time_limit_s for tool in SERVER_TOOLS.values()) + 60 < VISIBILITY_TIMEOUT_S
