"""Client events of the Realtime protocol: parsing and validation.

Unknown fields are accepted and stay readable (`event.model_extra`). Everything else that is not as
documented raises `ProtocolError`, never another exception.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Any

from pydantic import Field, ValidationError
from pydantic_core import from_json

from realtime.errors import ProtocolError, from_validation_error
from realtime.ids import new_id, server_event
from realtime.session_config import ResponseOptions, SessionPatch, WireModel

__all__ = ["CLIENT_EVENTS", "ClientEvent", "ProtocolError", "new_id", "parse_client_event", "server_event"]

Revision = Annotated[int, Field(ge=0, le=2**53)]
ItemId = Annotated[str, Field(min_length=1, max_length=64)]
MAX_EVENT_ID = 512


class ClientEvent(WireModel):
    type: str
    event_id: Annotated[str, Field(max_length=MAX_EVENT_ID)] | None = None


class SessionUpdate(ClientEvent):
    session: SessionPatch


class _BufferEdit(ClientEvent):
    """`base_revision` is the revision that the client believes to edit; None = whatever it is."""

    base_revision: Revision | None = None


class BufferAppend(_BufferEdit):
    text: str


class BufferReplace(_BufferEdit):
    """Replaces `start`..`end` (in the session's offset unit), or the whole text when neither is given."""

    text: str
    start: Revision | None = None
    end: Revision | None = None


class BufferClear(_BufferEdit):
    pass


class BufferCommit(_BufferEdit):
    """`text`, when given, wins over what the buffer holds."""

    text: str | None = None


class ItemCreate(ClientEvent):
    """`item` is checked by `conversation.item_from_client`."""

    item: dict[str, Any]
    previous_item_id: ItemId | None = None


class ItemRetrieve(ClientEvent):
    item_id: ItemId


class ItemDelete(ClientEvent):
    item_id: ItemId


class ItemTruncate(ClientEvent):
    item_id: ItemId
    content_index: Annotated[int, Field(ge=0, le=2**31)]
    audio_end_ms: Annotated[int, Field(ge=0, le=2**53)]


class ResponseCreate(ClientEvent):
    response: ResponseOptions | None = None

    @property
    def options(self) -> ResponseOptions:
        """`response`, or no overrides at all."""
        return self.response or ResponseOptions()


class ResponseCancel(ClientEvent):
    response_id: ItemId | None = None


CLIENT_EVENTS: dict[str, type[ClientEvent]] = {
    "session.update": SessionUpdate,
    "input_text_buffer.append": BufferAppend,
    "input_text_buffer.replace": BufferReplace,
    "input_text_buffer.clear": BufferClear,
    "input_text_buffer.commit": BufferCommit,
    "conversation.item.create": ItemCreate,
    "conversation.item.retrieve": ItemRetrieve,
    "conversation.item.delete": ItemDelete,
    "conversation.item.truncate": ItemTruncate,
    "response.create": ResponseCreate,
    "response.cancel": ResponseCancel,
}
_ALIASES = {f"input_text.{verb}": f"input_text_buffer.{verb}" for verb in ("append", "commit", "clear")}
_AUDIO = ("input_audio_buffer.", "output_audio_buffer.")

# Only where it cannot belong to a nested object: as first key, or right after `type`.
_LEADING_EVENT_ID = re.compile(r'\s*\{\s*(?:"type"\s*:\s*"[^"\\]*"\s*,\s*)?"event_id"\s*:\s*"([^"\\]{0,512})"')


def parse_client_event(text: str) -> ClientEvent:
    """One JSON text to a typed event; an alias becomes the event it stands for.

    Raises `ProtocolError` with code invalid_json, unknown_event, unsupported_modality, invalid_value or
    missing_required_parameter, and with the client's `event_id` wherever it can be read.
    """
    data = _parse_object(text)
    event_id = data.get("event_id")
    if not isinstance(event_id, str) or len(event_id) > MAX_EVENT_ID:
        event_id = None
    _check_numbers(data, event_id)
    model = CLIENT_EVENTS[_canonical_type(data, event_id)]
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise from_validation_error(error, event_id=event_id) from None


def _parse_object(text: str) -> dict[str, Any]:
    try:
        data = from_json(text.encode())
    except ValueError as error:
        match = _LEADING_EVENT_ID.match(text)
        readable = match.group(1) if match and _is_text(match.group(1)) else None
        raise ProtocolError("invalid_json", f"not valid JSON: {error}", event_id=readable) from None
    if not isinstance(data, dict):
        raise ProtocolError("invalid_json", "an event is a JSON object")
    return data


def _canonical_type(data: dict[str, Any], event_id: str | None) -> str:
    """The event's type with aliases resolved, in `data` too."""
    type_ = data.get("type")
    if type_ is None:
        raise ProtocolError("missing_required_parameter", "the event has no type", "type", event_id)
    if not isinstance(type_, str):
        raise ProtocolError("invalid_value", "type: must be a string", "type", event_id)
    if type_.startswith(_AUDIO):
        raise ProtocolError("unsupported_modality", "audio is not supported, only text", "type", event_id)
    data["type"] = type_ = _ALIASES.get(type_, type_)
    if type_ not in CLIENT_EVENTS:
        raise ProtocolError("unknown_event", f"unknown event type {type_[:100]!r}", "type", event_id)
    return type_


def _check_numbers(data: dict[str, Any], event_id: str | None) -> None:
    """NaN, infinities and integers beyond 64 bits cannot be passed on in JSON, wherever they stand."""
    pending: list[Any] = [data]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            pending.extend(value.values())
        elif isinstance(value, list):
            pending.extend(value)
        elif isinstance(value, float) and not math.isfinite(value):
            raise ProtocolError("invalid_json", "numbers must be finite", event_id=event_id)
        elif isinstance(value, int) and not -(2**63) <= value < 2**64:
            raise ProtocolError("invalid_value", "an integer is out of range", event_id=event_id)


def _is_text(text: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in text)
