"""The conversation: immutable items in order, their wire shapes, and what clients may create."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec
from pydantic import Discriminator, Field, Tag, TypeAdapter, ValidationError

from realtime.errors import ProtocolError, from_validation_error
from realtime.ids import new_id
from realtime.session_config import ToolName, WireModel, by_type

Role = Literal["user", "assistant", "system"]
Status = Literal["in_progress", "completed", "incomplete"]
ROOT = "root"
_ITEM_ID = re.compile(r"[A-Za-z0-9_.:-]{1,64}")


class Message(msgspec.Struct, frozen=True, tag="message"):
    """`content` holds the text of each content part."""

    id: str
    role: Role
    content: tuple[str, ...]
    status: Status = "completed"

    @property
    def text(self) -> str:
        """All parts as one."""
        return "".join(self.content)


class FunctionCall(msgspec.Struct, frozen=True, tag="function_call"):
    """A call that the client runs. `arguments` is JSON text."""

    id: str
    call_id: str
    name: str
    arguments: str
    status: Status = "completed"


class FunctionCallOutput(msgspec.Struct, frozen=True, tag="function_call_output"):
    id: str
    call_id: str
    output: str
    status: Status = "completed"


class McpError(msgspec.Struct, frozen=True, omit_defaults=True):
    """`code` belongs to `protocol_error` and `http_error`."""

    type: Literal["protocol_error", "tool_execution_error", "http_error"]
    message: str
    code: int | None = None


class McpCall(msgspec.Struct, frozen=True, tag="mcp_call"):
    """A call that the server runs: `output` or `error` when it is over, neither before."""

    id: str
    server_label: str
    name: str
    arguments: str
    output: str | None = None
    error: McpError | None = None
    approval_request_id: str | None = None


Item = Message | FunctionCall | FunctionCallOutput | McpCall
_items_decoder = msgspec.json.Decoder(list[Item])


def to_wire(item: Item) -> dict[str, Any]:
    """The item as clients see it."""
    wire = {"id": item.id, "object": "realtime.item", "type": item.__struct_config__.tag}
    if isinstance(item, Message):
        part_type = "output_text" if item.role == "assistant" else "input_text"
        content = [{"type": part_type, "text": text} for text in item.content]
        return wire | {"role": item.role, "status": item.status, "content": content}
    fields: dict[str, Any] = msgspec.to_builtins(item)
    return wire | fields


def item_from_wire(wire: dict[str, Any]) -> Item:
    """A finished output item of a response as the conversation keeps it; the inverse of `to_wire`."""
    if wire["type"] == "message":
        content = tuple(part["text"] for part in wire["content"])
        return Message(wire["id"], "assistant", content, wire["status"])
    if wire["type"] == "function_call":
        return FunctionCall(wire["id"], wire["call_id"], wire["name"], wire["arguments"], wire["status"])
    error = wire["error"] and McpError(wire["error"]["type"], wire["error"]["message"])
    return McpCall(wire["id"], wire["server_label"], wire["name"], wire["arguments"], wire["output"], error)


class Conversation:
    """Items in order. Raises `ProtocolError` item_not_found for every unknown id, and then changes nothing."""

    def __init__(self, items: list[Item] | None = None) -> None:
        self._order: list[str] = []
        self._items: dict[str, Item] = {}
        for item in items or []:
            self.add(item)

    def __iter__(self) -> Iterator[Item]:
        return (self._items[id_] for id_ in self._order)

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, item_id: str) -> bool:
        return item_id in self._items

    def add(self, item: Item, previous_item_id: str | None = None) -> str | None:
        """Puts `item` after `previous_item_id`: None = at the end, "root" = at the front. Returns the id before it.

        Raises `ProtocolError` invalid_value for an id that is taken and for a second output of one call,
        item_not_found for the output of an unknown call.
        """
        if item.id in self._items:
            raise ProtocolError("invalid_value", "an item with this id exists already", "item.id")
        if isinstance(item, FunctionCallOutput):
            self._check_call(item.call_id)
        position = self._position_after(previous_item_id)
        self._order.insert(position, item.id)
        self._items[item.id] = item
        return self._order[position - 1] if position else None

    def update(self, item: Item) -> None:
        """Puts `item` in the place of the one with the same id."""
        self.retrieve(item.id)
        self._items[item.id] = item

    def retrieve(self, item_id: str) -> Item:
        if item_id not in self._items:
            raise ProtocolError("item_not_found", "the conversation has no such item", "item_id")
        return self._items[item_id]

    def delete(self, item_id: str) -> Item:
        item = self.retrieve(item_id)
        self._order.remove(item_id)
        del self._items[item_id]
        return item

    def previous_id(self, item_id: str) -> str | None:
        """The id of the item before; None for the first one."""
        self.retrieve(item_id)
        position = self._order.index(item_id)
        return self._order[position - 1] if position else None

    to_wire = staticmethod(to_wire)

    def to_json(self) -> bytes:
        """All items, for the store; `from_json` reads it."""
        return msgspec.json.encode(list(self))

    @classmethod
    def from_json(cls, data: bytes) -> Conversation:
        """Raises `msgspec.DecodeError` for anything that `to_json` did not write."""
        conversation = cls()
        for item in _items_decoder.decode(data):
            conversation._order.append(item.id)
            conversation._items[item.id] = item
        return conversation

    def _position_after(self, previous_item_id: str | None) -> int:
        if previous_item_id is None:
            return len(self._order)
        if previous_item_id == ROOT:
            return 0
        if previous_item_id not in self._items:
            raise ProtocolError("item_not_found", "the conversation has no such item", "previous_item_id")
        return self._order.index(previous_item_id) + 1

    def _check_call(self, call_id: str) -> None:
        calls = [item for item in self._items.values() if isinstance(item, FunctionCall | FunctionCallOutput)]
        same = [item for item in calls if item.call_id == call_id]
        if any(isinstance(item, FunctionCallOutput) for item in same):
            raise ProtocolError("invalid_value", "this call has an output already", "item.call_id")
        if not same:
            raise ProtocolError("item_not_found", "the conversation has no such call", "item.call_id")


# What clients may create


class _Part(WireModel):
    type: str
    text: str | None = None


class _MessageInput(WireModel):
    type: Literal["message"]
    id: str | None = None
    role: Role
    content: Annotated[list[_Part], Field(min_length=1, max_length=64)]


class _FunctionCallInput(WireModel):
    type: Literal["function_call"]
    id: str | None = None
    call_id: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    name: ToolName
    arguments: str


class _FunctionCallOutputInput(WireModel):
    type: Literal["function_call_output"]
    id: str | None = None
    call_id: Annotated[str, Field(min_length=1, max_length=64)]
    output: str


_Input = _MessageInput | _FunctionCallInput | _FunctionCallOutputInput
_input_adapter: TypeAdapter[_Input] = TypeAdapter(
    Annotated[
        Annotated[_MessageInput, Tag("<message>")]
        | Annotated[_FunctionCallInput, Tag("<function_call>")]
        | Annotated[_FunctionCallOutputInput, Tag("<function_call_output>")],
        Discriminator(by_type),
    ]
)
_TEXT_PARTS = {"user": ("input_text", "text"), "system": ("input_text", "text"), "assistant": ("output_text", "text")}
_OTHER_MODALITIES = ("input_audio", "output_audio", "input_image", "audio")


def item_from_client(data: dict[str, Any], root: str = "item") -> Item:
    """The `item` of `conversation.item.create` (or one of `response.input`, then `root` says which).

    Raises `ProtocolError`: invalid_value, missing_required_parameter, unsupported_modality.
    """
    if "type" not in data:
        raise ProtocolError("missing_required_parameter", "the item has no type", f"{root}.type")
    try:
        given = _input_adapter.validate_python(data)
    except ValidationError as error:
        raise from_validation_error(error, root) from None
    if given.id is not None and (given.id == ROOT or not _ITEM_ID.fullmatch(given.id)):
        raise ProtocolError("invalid_value", "an id has 1 to 64 of the characters A-Z a-z 0-9 _ . : -", f"{root}.id")
    id_ = given.id or new_id("item_")
    if isinstance(given, _FunctionCallOutputInput):
        return FunctionCallOutput(id_, given.call_id, given.output)
    if isinstance(given, _FunctionCallInput):
        return FunctionCall(id_, given.call_id or new_id("call_"), given.name, given.arguments)
    parts = enumerate(given.content)
    return Message(id_, given.role, tuple(_text(given.role, part, f"{root}.content[{i}]") for i, part in parts))


def _text(role: Role, part: _Part, param: str) -> str:
    if part.type in _OTHER_MODALITIES:
        raise ProtocolError("unsupported_modality", f"{part.type} is not supported, only text", f"{param}.type")
    if part.type not in _TEXT_PARTS[role]:
        expected = _TEXT_PARTS[role][0]
        raise ProtocolError("invalid_value", f"a content part of this role is {expected!r}", f"{param}.type")
    if part.text is None:
        raise ProtocolError("missing_required_parameter", "the content part has no text", f"{param}.text")
    return part.text
