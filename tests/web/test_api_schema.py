"""The published schemas. That events are as they say is checked by `running_host.check_event` in tests of a host."""

from __future__ import annotations

from typing import Any

import pytest
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from realtime.events import CLIENT_EVENTS
from realtime.extension_events import EVENTS
from tests.web.conftest import Running
from web.api_schema import asyncapi, json_schema


def references(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return own + [one for child in value.values() for one in references(child)]
    return [one for child in value for one in references(child)] if isinstance(value, list) else []


def resolve(document: dict[str, Any], reference: str) -> Any:
    found: Any = document
    for part in reference.removeprefix("#/").split("/"):
        found = found[part]
    return found


@pytest.mark.parametrize("document", [json_schema(), asyncapi()], ids=["schema", "asyncapi"])
def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    assert references(document)
    for reference in references(document):
        assert isinstance(resolve(document, reference), dict)


def test_the_schema_is_one_and_knows_every_event() -> None:
    schema = json_schema()
    Draft202012Validator.check_schema(schema)
    assert set(schema["properties"]["client"]["properties"]) == set(CLIENT_EVENTS)
    assert set(schema["properties"]["server"]["properties"]) == set(EVENTS)
    assert set(asyncapi()["channels"]["realtime"]["messages"]) == {*CLIENT_EVENTS, *EVENTS}


def test_it_tells_a_right_event_from_a_wrong_one() -> None:
    schema = json_schema()
    validator = Draft202012Validator({"$defs": schema["$defs"], "$ref": "#/$defs/BufferReplace"})
    validator.validate({"type": "input_text_buffer.replace", "text": "a", "start": 0, "end": 1})
    with pytest.raises(ValidationError):
        validator.validate({"type": "input_text_buffer.replace", "text": 1})


async def test_both_are_served(server: Running) -> None:
    async with server.client() as http:
        for name, document in (("schema", json_schema()), ("asyncapi", asyncapi())):
            assert (await http.get(f"/docs/{name}.json")).json() == document
