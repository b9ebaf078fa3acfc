from __future__ import annotations

from typing import Any

import msgspec
import pytest

from realtime.conversation import (
    Conversation,
    FunctionCall,
    FunctionCallOutput,
    Item,
    McpCall,
    McpError,
    Message,
    item_from_client,
    item_from_wire,
    to_wire,
)
from realtime.errors import ProtocolError

USER = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]}


def message(id_: str, text: str = "Hi") -> Message:
    return Message(id_, "user", (text,))


def ids(conversation: Conversation) -> list[str]:
    return [item.id for item in conversation]


def refusal(call: Any, *args: Any) -> tuple[str, str | None]:
    with pytest.raises(ProtocolError) as caught:
        call(*args)
    return caught.value.code, caught.value.param


def test_items_go_to_the_end_the_front_or_behind_another() -> None:
    conversation = Conversation([message("a")])
    assert conversation.add(message("b")) == "a"
    assert conversation.add(message("c"), "root") is None
    assert conversation.add(message("d"), "a") == "a"
    assert ids(conversation) == ["c", "a", "d", "b"]
    assert [conversation.previous_id(id_) for id_ in "cadb"] == [None, "c", "a", "d"]
    assert len(conversation) == 4
    assert "d" in conversation


def test_a_refused_item_changes_nothing() -> None:
    conversation = Conversation([message("a")])
    assert refusal(conversation.add, message("a")) == ("invalid_value", "item.id")
    assert refusal(conversation.add, message("b"), "x") == ("item_not_found", "previous_item_id")
    for missing in (conversation.retrieve, conversation.delete, conversation.previous_id):
        assert refusal(missing, "x") == ("item_not_found", "item_id")
    assert refusal(conversation.update, message("x")) == ("item_not_found", "item_id")
    assert ids(conversation) == ["a"]


def test_items_are_retrieved_updated_and_deleted() -> None:
    conversation = Conversation([message("a"), message("b")])
    conversation.update(message("a", "Hello"))
    assert conversation.retrieve("a") == message("a", "Hello")
    assert conversation.delete("a") == message("a", "Hello")
    assert ids(conversation) == ["b"]


def test_a_call_takes_one_output() -> None:
    conversation = Conversation([FunctionCall("a", "call_1", "f", "{}")])
    assert refusal(conversation.add, FunctionCallOutput("b", "call_2", "x")) == ("item_not_found", "item.call_id")
    conversation.add(FunctionCallOutput("b", "call_1", "x"))
    assert refusal(conversation.add, FunctionCallOutput("c", "call_1", "x")) == ("invalid_value", "item.call_id")


ITEMS_ON_THE_WIRE: list[tuple[Item, dict[str, Any]]] = [
    (
        Message("i", "user", ("a", "b")),
        {"type": "message", "role": "user", "status": "completed",
         "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
    ),
    (
        Message("i", "assistant", ("a",), "in_progress"),
        {"type": "message", "role": "assistant", "status": "in_progress",
         "content": [{"type": "output_text", "text": "a"}]},
    ),
    (
        FunctionCall("i", "c", "f", "{}"),
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "status": "completed"},
    ),
    (
        FunctionCallOutput("i", "c", "x"),
        {"type": "function_call_output", "call_id": "c", "output": "x", "status": "completed"},
    ),
    (
        McpCall("i", "midstream", "f", "{}", error=McpError("tool_execution_error", "no")),
        {"type": "mcp_call", "server_label": "midstream", "name": "f", "arguments": "{}", "output": None,
         "error": {"type": "tool_execution_error", "message": "no"}, "approval_request_id": None},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("item", "wire"), ITEMS_ON_THE_WIRE)
def test_items_have_the_shape_of_the_protocol(item: Any, wire: dict[str, Any]) -> None:
    expected = {"id": "i", "object": "realtime.item", **wire}
    assert to_wire(item) == expected
    assert Conversation.to_wire(item) == expected


def test_a_conversation_survives_the_store() -> None:
    items = [msgspec.structs.replace(item, id=str(n)) for n, (item, _) in enumerate(ITEMS_ON_THE_WIRE)]
    conversation = Conversation([item for item in items if not isinstance(item, FunctionCallOutput)])
    assert list(Conversation.from_json(conversation.to_json())) == list(conversation)
    with pytest.raises(msgspec.DecodeError):
        Conversation.from_json(b'[{"type": "nope"}]')


@pytest.mark.parametrize("role", ["user", "system", "assistant"])
def test_clients_create_messages(role: str) -> None:
    part = "output_text" if role == "assistant" else "input_text"
    content = [{"type": part, "text": "a"}, {"type": "text", "text": "b"}]
    item = item_from_client({"type": "message", "id": "mine", "role": role, "content": content})
    assert isinstance(item, Message)
    assert (item.id, item.role, item.text) == ("mine", role, "ab")


def test_clients_create_calls_and_outputs() -> None:
    call = item_from_client({"type": "function_call", "name": "f", "arguments": "{}"})
    assert isinstance(call, FunctionCall)
    assert call.call_id.startswith("call_")
    assert call.id.startswith("item_")
    output = item_from_client({"type": "function_call_output", "call_id": call.call_id, "output": "x"})
    assert output == FunctionCallOutput(output.id, call.call_id, "x")


@pytest.mark.parametrize(
    ("data", "code", "param"),
    [
        ({}, "missing_required_parameter", "item.type"),
        ({"type": "mcp_call"}, "invalid_value", "item"),
        ({"type": 3}, "invalid_value", "item"),
        ({**USER, "role": "tool"}, "invalid_value", "item.role"),
        ({**USER, "content": []}, "invalid_value", "item.content"),
        ({**USER, "content": [{"type": "input_audio"}]}, "unsupported_modality", "item.content[0].type"),
        ({**USER, "content": [{"type": "output_text", "text": ""}]}, "invalid_value", "item.content[0].type"),
        ({**USER, "content": [{"type": "input_text"}]}, "missing_required_parameter", "item.content[0].text"),
        ({**USER, "content": [{"text": "a"}]}, "missing_required_parameter", "item.content[0].type"),
        ({**USER, "id": "root"}, "invalid_value", "item.id"),
        ({**USER, "id": ""}, "invalid_value", "item.id"),
        ({**USER, "id": "a b"}, "invalid_value", "item.id"),
        ({"type": "function_call_output", "output": "x"}, "missing_required_parameter", "item.call_id"),
    ],
)
def test_other_items_are_refused(data: dict[str, Any], code: str, param: str) -> None:
    assert refusal(item_from_client, data) == (code, param)


def test_the_path_of_a_refused_item_says_where_it_stood() -> None:
    assert refusal(item_from_client, {**USER, "role": "x"}, "response.input[2]") == (
        "invalid_value",
        "response.input[2].role",
    )


@pytest.mark.parametrize(
    "item",
    [
        Message("1", "assistant", ("Hi",), "incomplete"),
        FunctionCall("2", "call_1", "lookup", '{"a": 1}'),
        McpCall("3", "midstream", "calculator", "{}", "4"),
        McpCall("4", "midstream", "calculator", "{}", None, McpError("tool_execution_error", "no")),
    ],
)
def test_an_output_item_comes_back_from_the_wire(item: Item) -> None:
    assert item_from_wire(to_wire(item)) == item
