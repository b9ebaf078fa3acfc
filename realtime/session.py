"""One session's protocol state: client events in, effects out. Pure: no I/O, no clock.

The actor carries the effects out and tells `response_ended` when a response is over.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from realtime import events as ev
from realtime.conversation import Conversation, Item, Message, item_from_client, to_wire
from realtime.errors import ProtocolError
from realtime.ids import new_id, server_event
from realtime.input_buffer import InputBuffer
from realtime.session_config import SessionConfig
from realtime.toolbox import Toolbox


@dataclass(frozen=True)
class Send:
    """A numbered server event for every socket of the session."""

    event: dict[str, Any]


@dataclass(frozen=True)
class Edited:
    """The unsent text changed."""


@dataclass(frozen=True)
class Configured:
    """The configuration changed: what was made with the old one is void."""


@dataclass(frozen=True)
class Committed:
    """The unsent text became this item."""

    item: Message


@dataclass(frozen=True)
class Saved:
    """An item is new or changed; `order` says whether the sequence of items changed too."""

    item: Item
    order: bool


@dataclass(frozen=True)
class Deleted:
    item_id: str


@dataclass(frozen=True)
class Respond:
    """Start a response with this configuration; `event_id` is the client's, for errors."""

    config: SessionConfig
    metadata: dict[str, str] | None
    event_id: str | None


@dataclass(frozen=True)
class CancelResponse:
    """Stop the running response."""


Effect = Send | Edited | Configured | Committed | Saved | Deleted | Respond | CancelResponse
Activity = Literal["idle", "running", "cancelling"]


class Session:
    """`activity` and `active_response` describe the one response that may write to the conversation."""

    def __init__(self, id: str, config: SessionConfig, conversation: Conversation) -> None:
        self.id = id
        self.config = config
        self.conversation = conversation
        self.buffer = InputBuffer(config.offsets)
        self.activity: Activity = "idle"
        self.active_response = ""
        self._queued: Respond | None = None

    def handle(self, event: ev.ClientEvent) -> list[Effect]:
        """Raises `ProtocolError` (with the event's id) and then changes nothing."""
        try:
            return self._handle(event)
        except ProtocolError as error:
            error.event_id = event.event_id
            raise

    def response_started(self, response_id: str) -> None:
        self.activity, self.active_response = "running", response_id

    def response_ended(self) -> list[Effect]:
        """The response is over; what waited behind it may start."""
        self.activity, self.active_response = "idle", ""
        queued, self._queued = self._queued, None
        return [queued] if queued is not None else []

    def _handle(self, event: ev.ClientEvent) -> list[Effect]:
        match event:
            case ev.SessionUpdate():
                return self._update(event)
            case ev.BufferAppend():
                self.buffer.append(event.text, event.base_revision)
                return [Edited()]
            case ev.BufferReplace():
                self.buffer.replace(event.text, event.start, event.end, event.base_revision)
                return [Edited()]
            case ev.BufferClear():
                self.buffer.clear(event.base_revision)
                return [Edited(), Send(server_event("input_text_buffer.cleared", revision=self.buffer.revision))]
            case ev.BufferCommit():
                return self._commit(event)
            case ev.ItemCreate():
                return self._create_item(item_from_client(event.item), event.previous_item_id)
            case ev.ItemRetrieve():
                item = self.conversation.retrieve(event.item_id)
                return [Send(server_event("conversation.item.retrieved", item=to_wire(item)))]
            case ev.ItemDelete():
                self.conversation.delete(event.item_id)
                return [
                    Deleted(event.item_id),
                    Send(server_event("conversation.item.deleted", item_id=event.item_id)),
                ]
            case ev.ResponseCreate():
                return self._respond(event)
            case ev.ResponseCancel():
                return self._cancel(event)
        # conversation.item.truncate cuts audio short, and there is none
        raise ProtocolError("unsupported_modality", f"{event.type} concerns audio, which is not supported", "type")

    def _update(self, event: ev.SessionUpdate) -> list[Effect]:
        config = self.config.apply(event.session)
        _check_tools(config, "session")
        self.config = config
        self.buffer.offsets = config.offsets
        updated = server_event("session.updated", session={**config.to_wire(), "id": self.id})
        return [Configured(), Send(updated)]

    def _commit(self, event: ev.BufferCommit) -> list[Effect]:
        text = self.buffer.commit(event.text, event.base_revision)
        item = Message(new_id("item_"), "user", (text,))
        previous = self.conversation.add(item)
        committed = server_event(
            "input_text_buffer.committed",
            item_id=item.id,
            previous_item_id=previous,
            revision=self.buffer.revision,
        )
        return [Committed(item), Saved(item, order=True), Send(committed), *_item_events(item, previous)]

    def _create_item(self, item: Item, previous_item_id: str | None) -> list[Effect]:
        previous = self.conversation.add(item, previous_item_id)
        return [Saved(item, order=True), *_item_events(item, previous)]

    def _respond(self, event: ev.ResponseCreate) -> list[Effect]:
        options = event.options
        if options.conversation == "none" or options.input is not None:
            name = "conversation" if options.conversation == "none" else "input"
            raise ProtocolError("invalid_value", "out-of-band responses are not supported yet", f"response.{name}")
        config = self.config.for_response(options)
        _check_tools(config, "response")
        respond = Respond(config, options.metadata, event.event_id)
        if self.activity == "idle":
            return [respond]
        if self.activity == "cancelling" and self._queued is None:
            self._queued = respond
            return []
        message = f"response {self.active_response} is still running"
        raise ProtocolError("conversation_already_has_active_response", message)

    def _cancel(self, event: ev.ResponseCancel) -> list[Effect]:
        if self.activity == "idle" or event.response_id not in (None, self.active_response):
            raise ProtocolError("response_not_active", "no such response is running", "response_id")
        # A cancel also withdraws what waits behind a response that is being cancelled already.
        self._queued = None
        if self.activity == "cancelling":
            return []
        self.activity = "cancelling"
        return [CancelResponse()]


def _check_tools(config: SessionConfig, root: str) -> None:
    """Raises `ProtocolError` when the configuration names a tool that does not exist."""
    try:
        Toolbox.of(config)
    except ProtocolError as error:
        error.param = f"{root}.{error.param}"
        raise


def _item_events(item: Item, previous: str | None) -> list[Effect]:
    wire = to_wire(item)
    return [
        Send(server_event(f"conversation.item.{step}", previous_item_id=previous, item=wire))
        for step in ("added", "done")
    ]
