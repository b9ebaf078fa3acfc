from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from realtime import events
from realtime.events import ProtocolError, new_id, parse_client_event, server_event


def parse(**fields: Any) -> events.ClientEvent:
    return parse_client_event(json.dumps(fields))


def refuse(text: str) -> ProtocolError:
    with pytest.raises(ProtocolError) as caught:
        parse_client_event(text)
    return caught.value


def refuse_event(**fields: Any) -> ProtocolError:
    return refuse(json.dumps({"event_id": "c1", **fields}))


VALID = [
    ({"type": "session.update", "session": {}}, events.SessionUpdate),
    ({"type": "input_text_buffer.append", "text": "a"}, events.BufferAppend),
    ({"type": "input_text_buffer.replace", "text": "a", "start": 0, "end": 1}, events.BufferReplace),
    ({"type": "input_text_buffer.clear"}, events.BufferClear),
    ({"type": "input_text_buffer.commit", "base_revision": 3}, events.BufferCommit),
    ({"type": "conversation.item.create", "item": {"type": "message"}}, events.ItemCreate),
    ({"type": "conversation.item.retrieve", "item_id": "i"}, events.ItemRetrieve),
    ({"type": "conversation.item.delete", "item_id": "i"}, events.ItemDelete),
    (
        {"type": "conversation.item.truncate", "item_id": "i", "content_index": 0, "audio_end_ms": 1},
        events.ItemTruncate,
    ),
    ({"type": "response.create"}, events.ResponseCreate),
    ({"type": "response.cancel"}, events.ResponseCancel),
]


@pytest.mark.parametrize(("fields", "model"), VALID)
def test_a_documented_event_is_parsed(fields: dict[str, Any], model: type[events.ClientEvent]) -> None:
    event = parse(event_id="c1", **fields)
    assert type(event) is model
    assert (event.type, event.event_id) == (fields["type"], "c1")


@pytest.mark.parametrize("verb", ["append", "commit", "clear"])
def test_an_alias_becomes_the_event_it_stands_for(verb: str) -> None:
    assert parse(type=f"input_text.{verb}", text="a").type == f"input_text_buffer.{verb}"


def test_unknown_fields_survive() -> None:
    event = parse(type="session.update", session={"x_live": {"a": 1}}, x=2)
    assert isinstance(event, events.SessionUpdate)
    assert (event.model_extra, event.session.model_extra) == ({"x": 2}, {"x_live": {"a": 1}})


@pytest.mark.parametrize("response", [None, {}])
def test_a_response_without_options_overrides_nothing(response: Any) -> None:
    event = parse(type="response.create", response=response)
    assert isinstance(event, events.ResponseCreate)
    assert event.options.model_fields_set == set()


@pytest.mark.parametrize(
    "text",
    [
        *["", "{", "nope", "[]", "3", '"x"', '{"a": 1} x', '{"\ud800": 1}'],
        *['{"a":' + "[" * 100_000, '{"a": ' + "1" * 5000 + "}"],
        *['{"type": "response.create", "x": ' + value + "}" for value in ('"\\ud800"', "NaN", "[1e999]")],
    ],
)
def test_what_is_not_json_is_refused(text: str) -> None:
    assert refuse(text).code == "invalid_json"


@pytest.mark.parametrize(
    ("text", "event_id"),
    [
        ('{"type": "response.create", "event_id": "c1", "x": {', "c1"),
        ('{"event_id":"c1","x":"\\ud800"}', "c1"),
        ('{"event_id": "c1", "x": NaN}', "c1"),
        ('{"item": {"event_id": "nested"}, ', None),
        ('{"event_id": "\ud800"', None),
    ],
)
def test_the_event_id_is_read_where_it_can_be(text: str, event_id: str | None) -> None:
    assert refuse(text).event_id == event_id


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({}, "missing_required_parameter", "type"),
        ({"type": None}, "missing_required_parameter", "type"),
        ({"type": 3}, "invalid_value", "type"),
        ({"type": "nope"}, "unknown_event", "type"),
        ({"type": "input_audio_buffer.append", "audio": ""}, "unsupported_modality", "type"),
        ({"type": "output_audio_buffer.clear"}, "unsupported_modality", "type"),
        ({"type": "input_text_buffer.append"}, "missing_required_parameter", "text"),
        ({"type": "input_text_buffer.append", "text": 3}, "invalid_value", "text"),
        ({"type": "input_text_buffer.append", "text": "a", "base_revision": -1}, "invalid_value", "base_revision"),
        ({"type": "input_text_buffer.append", "text": "a", "base_revision": True}, "invalid_value", "base_revision"),
        ({"type": "input_text_buffer.replace", "text": "a", "start": 1.0}, "invalid_value", "start"),
        ({"type": "session.update"}, "missing_required_parameter", "session"),
        ({"type": "session.update", "session": []}, "invalid_value", "session"),
        ({"type": "conversation.item.create", "item": "x"}, "invalid_value", "item"),
        ({"type": "conversation.item.delete", "item_id": "x" * 65}, "invalid_value", "item_id"),
        ({"type": "response.create", "response": {"conversation": "all"}}, "invalid_value", "response.conversation"),
        ({"type": "response.create", "x": 2**64}, "invalid_value", None),
    ],
)
def test_what_is_not_as_documented_is_refused(fields: dict[str, Any], code: str, param: str | None) -> None:
    error = refuse_event(**fields)
    assert (error.code, error.param, error.event_id) == (code, param, "c1")


@pytest.mark.parametrize("event_id", [3, "x" * 513, None, {}])
def test_an_invalid_event_id_is_not_echoed(event_id: Any) -> None:
    error = refuse(json.dumps({"type": "nope", "event_id": event_id}))
    assert (error.code, error.event_id) == ("unknown_event", None)
    if event_id is not None:
        assert refuse(json.dumps({"type": "response.cancel", "event_id": event_id})).param == "event_id"


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(st.characters(), max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=8,
)
field_names = st.sampled_from(
    ["text", "session", "item", "item_id", "response", "start", "tools", "event_id", "tool_choice", "midstream"]
    + ["max_output_tokens", "events", "sampling", "type", "truncation", "metadata", "allowed_tools", "seed"]
)
sessions = st.dictionaries(field_names, st.one_of(json_values, st.dictionaries(field_names, json_values, max_size=3)))


@settings(max_examples=150, deadline=None)
@given(
    type_=st.one_of(json_values, st.sampled_from([*events.CLIENT_EVENTS, "input_text.append"])),
    fields=st.dictionaries(field_names, st.one_of(json_values, sessions, st.lists(sessions, max_size=2)), max_size=4),
    raw=st.text(st.characters(), max_size=10),
)
def test_anything_is_an_event_or_a_protocol_error(type_: Any, fields: dict[str, Any], raw: str) -> None:
    for text in (json.dumps({**fields, "type": type_}), json.dumps(fields, ensure_ascii=False), raw):
        try:
            event = parse_client_event(text)
        except ProtocolError as error:
            json.dumps(error.to_event(), ensure_ascii=False).encode()
        else:
            assert event.type in events.CLIENT_EVENTS
            event.model_dump_json()


def test_an_error_event_has_the_documented_shape() -> None:
    event = ProtocolError("engine_unavailable", "gone", "p", "c1", type="server_error").to_event()
    assert event.pop("event_id").startswith("event_")
    error = {"type": "server_error", "code": "engine_unavailable", "message": "gone", "param": "p", "event_id": "c1"}
    assert event == {"type": "error", "error": error}


def test_server_events_have_distinct_ids() -> None:
    first, second = server_event("x", a=1), server_event("x", a=1)
    assert first["event_id"] != second["event_id"]
    assert (first["type"], first["a"]) == ("x", 1)
    assert len(new_id("item_")) == len("item_") + 32
