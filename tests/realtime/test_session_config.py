from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from realtime.errors import ProtocolError, from_validation_error
from realtime.session_config import McpTool, ResponseOptions, Sampling, SessionConfig, SessionPatch

ADD = {"type": "function", "name": "add", "parameters": {"type": "object"}}
SERVER = {"type": "mcp", "server_label": "midstream", "allowed_tools": ["calculator"], "require_approval": "never"}
FORCED = {"type": "mcp", "server_label": "midstream", "name": "calculator"}


def patched(config: SessionConfig | None = None, **fields: Any) -> SessionConfig:
    return (config or SessionConfig(model="m")).apply(SessionPatch.model_validate(fields))


def refused(**fields: Any) -> ProtocolError:
    try:
        patched(**fields)
    except ValidationError as error:
        return from_validation_error(error, "session")
    except ProtocolError as error:
        return error
    raise AssertionError("the patch was accepted")


def test_absent_fields_stay_and_null_or_empty_clears() -> None:
    config = patched(instructions="Be brief.", tools=[ADD], max_output_tokens=5, metadata={"a": "b"})
    assert patched(config, temperature=1) == config.model_copy(update={"sampling": Sampling(temperature=1.0)})
    for nothing in (None, ""):
        assert patched(config, instructions=nothing).instructions == ""
    assert patched(config, tools=[]).tools == []
    cleared = patched(config, max_output_tokens=None, metadata={}, tools=None, instructions=None)
    assert cleared == SessionConfig(model="m")


def test_the_midstream_fields_are_patched_one_by_one() -> None:
    config = patched(midstream={"strategy": "notes", "events": ["inference"], "offsets": "code_points"})
    config = patched(config, midstream={"sampling": {"temperature": 0.5, "seed": 7, "unknown": 1}})
    assert (config.strategy, config.events, config.offsets) == ("notes", ["inference"], "code_points")
    assert config.sampling == Sampling(temperature=0.5, seed=7)
    config = patched(config, midstream={"sampling": {"seed": None}})
    assert config.sampling == Sampling(temperature=0.5)
    assert patched(config, midstream={"sampling": None}).sampling == Sampling()
    assert patched(config, midstream=None) == SessionConfig(model="m")


def test_nested_sampling_wins_over_the_bare_fields() -> None:
    config = patched(temperature=1, seed=3, midstream={"sampling": {"temperature": 0.5}})
    assert config.sampling == Sampling(temperature=0.5, seed=3)
    assert patched(config, temperature=None).sampling == Sampling(seed=3)


def test_a_response_overrides_the_session_and_leaves_it_alone() -> None:
    config = patched(instructions="a", tools=[ADD], temperature=1)
    options = ResponseOptions.model_validate(
        {
            "instructions": "",
            "tools": None,
            "tool_choice": "none",
            "top_p": 0.5,
            "midstream": {"sampling": {"top_k": 2}},
        }
    )
    effective = config.for_response(options)
    assert (effective.instructions, effective.tools, effective.tool_choice) == ("", config.tools, "none")
    assert effective.sampling == Sampling(temperature=1.0, top_p=0.5, top_k=2)
    assert config.for_response(ResponseOptions()) == config


@pytest.mark.parametrize(
    ("tools", "choice"),
    [
        ([SERVER], FORCED),
        ([SERVER], {"type": "mcp", "server_label": "midstream"}),
        ([{"type": "mcp", "server_label": "midstream"}], FORCED),
        ([{**SERVER, "allowed_tools": {"tool_names": ["calculator"]}}], FORCED),
        ([ADD, SERVER], {"type": "function", "name": "add"}),
        ([ADD], "required"),
        ([], "auto"),
    ],
)
def test_a_possible_tool_choice_is_accepted(tools: list[Any], choice: Any) -> None:
    config = patched(tools=tools, tool_choice=choice)
    assert patched(tools=tools, tool_choice=choice) == config
    assert SessionConfig.model_validate_json(config.model_dump_json()) == config


@pytest.mark.parametrize(
    ("tools", "choice"),
    [
        ([], FORCED),
        ([ADD], FORCED),
        ([SERVER], {**FORCED, "name": "other"}),
        ([SERVER], {**FORCED, "server_label": "other"}),
        ([SERVER], {"type": "function", "name": "calculator"}),
        ([], "required"),
    ],
)
def test_an_impossible_tool_choice_is_refused(tools: list[Any], choice: Any) -> None:
    error = refused(tools=tools, tool_choice=choice)
    assert (error.code, error.param) == ("tool_not_found", "session.tool_choice")


def test_an_impossible_tool_choice_of_a_response_is_refused() -> None:
    with pytest.raises(ProtocolError, match="tool_choice") as caught:
        SessionConfig(model="m").for_response(ResponseOptions(tool_choice="required"))
    assert caught.value.param == "response.tool_choice"


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"model": "other"}, "model_not_found", "session.model"),
        ({"output_modalities": ["audio"]}, "unsupported_modality", "session.output_modalities"),
        ({"tools": [ADD, ADD]}, "invalid_value", "session.tools"),
        ({"tools": [{"name": "x"}]}, "invalid_value", "session.tools[0]"),
        ({"tools": [{**ADD, "name": "a b"}]}, "invalid_value", "session.tools[0].name"),
        ({"tools": [{**SERVER, "allowed_tools": {"tool_names": [1]}}]}, "invalid_value",
         "session.tools[0].allowed_tools.tool_names[0]"),
        ({"tools": [{"type": "function"}]}, "missing_required_parameter", "session.tools[0].name"),
        ({"tool_choice": "maybe"}, "invalid_value", "session.tool_choice"),
        ({"max_output_tokens": 0}, "invalid_value", "session.max_output_tokens"),
        ({"max_output_tokens": "many"}, "invalid_value", "session.max_output_tokens"),
        ({"max_output_tokens": 1.5}, "invalid_value", "session.max_output_tokens"),
        ({"temperature": 2.5}, "invalid_value", "session.temperature"),
        ({"temperature": True}, "invalid_value", "session.temperature"),
        ({"seed": -1}, "invalid_value", "session.seed"),
        ({"metadata": {"k" * 65: "v"}}, "invalid_value", None),
        ({"metadata": {str(i): "" for i in range(17)}}, "invalid_value", "session.metadata"),
        ({"truncation": {"type": "retention_ratio", "retention_ratio": 2}}, "invalid_value",
         "session.truncation.retention_ratio"),
        ({"midstream": {"strategy": "fast"}}, "invalid_value", "session.midstream.strategy"),
        ({"midstream": {"sampling": {"top_k": 1.0}}}, "invalid_value", "session.midstream.sampling.top_k"),
    ],
)  # fmt: skip
def test_invalid_fields_are_refused_with_their_path(fields: dict[str, Any], code: str, param: str | None) -> None:
    error = refused(**fields)
    assert error.code == code
    assert param is None or error.param == param


def test_midstream_events_are_opt_in_by_family() -> None:
    def wants(events: Any) -> tuple[bool, ...]:
        config = patched(midstream={"events": events})
        types = ("response.created", "midstream.kv.state", "midstream.going_away")
        return tuple(config.wants_event(type_) for type_ in types)

    assert wants(False) == (True, False, False)
    assert wants(True) == (True, True, True)
    assert wants(["kv"]) == (True, True, False)


def test_the_wire_form_is_the_full_configuration() -> None:
    wire = patched(tools=[SERVER], tool_choice=FORCED, model="m", type="realtime").to_wire()
    assert wire["type"] == "realtime"
    assert wire["model"] == "m"
    assert wire["output_modalities"] == ["text"]
    assert wire["max_output_tokens"] == "inf"
    assert wire["tools"] == [SERVER]
    assert wire["tool_choice"] == FORCED
    assert wire["truncation"] == "auto"
    assert wire["midstream"]["strategy"] == "auto"
    assert wire["midstream"]["sampling"]["temperature"] == 0.0


def test_a_server_tool_without_allowed_tools_allows_all() -> None:
    assert McpTool(type="mcp", server_label="x").allowed_names is None
