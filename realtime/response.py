"""One response as the client sees it: progress in, server events in canonical order out. Pure."""

from __future__ import annotations

from typing import Any

from realtime.events import server_event
from realtime.ids import new_id

Event = dict[str, Any]

SERVER_LABEL = "midstream"


class Response:
    """Builds the events of one response; whatever happens, every opened part and item gets its `.done`.

    `items` collects the finished output items as wire dicts.
    """

    def __init__(self, metadata: dict[str, str] | None, max_output_tokens: int | str) -> None:
        self.id = new_id("resp_")
        self.items: list[Event] = []
        self._metadata = metadata
        self._max_output_tokens = max_output_tokens
        self._message: Event | None = None
        self._text: list[str] = []
        self._call: Event | None = None

    @classmethod
    def from_log(cls, response_id: str, logged: list[Event]) -> Response:
        """A response as far as the events that it has sent tell of it; they may be mixed with others."""
        response = cls(None, "inf")
        response.id = response_id
        for event in logged:
            if event["type"] == "response.created" and event["response"]["id"] == response_id:
                response._metadata = event["response"]["metadata"]
                response._max_output_tokens = event["response"]["max_output_tokens"]
            elif event.get("response_id") == response_id:
                response._recall(event)
        return response

    def _recall(self, event: Event) -> None:
        match event:
            case {"type": "response.output_item.added", "item": {"type": "message"} as item}:
                self._message = item
            case {"type": "response.output_item.added", "item": item}:
                self._call = item
            case {"type": "response.output_text.delta", "delta": delta}:
                self._text.append(delta)
            case {"type": "response.mcp_call_arguments.delta", "delta": delta} if self._call is not None:
                self._call["arguments"] += delta
            case {"type": "response.output_item.done", "item": item}:
                self._finish(item)
                self._message, self._text, self._call = None, [], None

    @property
    def text(self) -> str:
        """Text of the message that is open now."""
        return "".join(self._text)

    @property
    def message_id(self) -> str | None:
        return self._message["id"] if self._message else None

    def to_wire(self, status: str, details: Event | None = None, usage: Event | None = None) -> Event:
        return {
            "id": self.id,
            "object": "realtime.response",
            "status": status,
            "status_details": details,
            "output": list(self.items),
            "output_modalities": ["text"],
            "max_output_tokens": self._max_output_tokens,
            "metadata": self._metadata,
            "usage": usage,
        }

    def created(self) -> list[Event]:
        return [server_event("response.created", response=self.to_wire("in_progress"))]

    def delta(self, text: str, previous_item_id: str | None) -> list[Event]:
        """Answer text; opens the message item on the first piece."""
        events: list[Event] = []
        if self._message is None:
            self._message = _message(new_id("item_"), "in_progress", [])
            item = self._message
            events = [
                self._on_item("response.output_item.added", item),
                server_event("conversation.item.added", previous_item_id=previous_item_id, item=item),
                self._on_part("response.content_part.added", part={"type": "text", "text": ""}),
            ]
        self._text.append(text)
        events.append(self._on_part("response.output_text.delta", delta=text))
        return events

    def close_message(self, status: str, previous_item_id: str | None) -> list[Event]:
        """Ends the open message, if any, with everything it said."""
        if self._message is None:
            return []
        text = self.text
        item = _message(self._message["id"], status, [{"type": "output_text", "text": text}])
        events = [
            self._on_part("response.output_text.done", text=text),
            self._on_part("response.content_part.done", part={"type": "text", "text": text}),
            self._on_item("response.output_item.done", item),
            server_event("conversation.item.done", previous_item_id=previous_item_id, item=item),
        ]
        self._finish(item)
        self._message, self._text = None, []
        return events

    def open_call(self, kind: str, name: str) -> list[Event]:
        """Begins a tool call item: `mcp_call` (run by the server) or `function_call` (run by the client)."""
        item: Event = {"id": new_id("item_"), "object": "realtime.item", "type": kind, "name": name, "arguments": ""}
        if kind == "mcp_call":
            item |= {"server_label": SERVER_LABEL, "output": None, "error": None, "approval_request_id": None}
        else:
            item |= {"call_id": new_id("call_"), "status": "in_progress"}
        self._call = item
        return [self._on_item("response.output_item.added", item)]

    @property
    def call(self) -> Event:
        """The open call item. Raises `RuntimeError` when none is open."""
        if self._call is None:
            raise RuntimeError("no tool call is open")
        return self._call

    def call_arguments(self, delta: str) -> list[Event]:
        self.call["arguments"] += delta
        return [self._on_call("arguments.delta", separator="_", delta=delta)]

    def call_arguments_done(self) -> list[Event]:
        extra = {} if self.call["type"] == "mcp_call" else {"name": self.call["name"]}
        return [self._on_call("arguments.done", separator="_", arguments=self.call["arguments"], **extra)]

    def call_in_progress(self) -> list[Event]:
        return [self._on_call("in_progress")]

    def close_call(self, output: str | None = None, error: str | None = None) -> list[Event]:
        """Ends the open call: with an output or an error when the server ran it, with neither when the client will."""
        item, self._call = dict(self.call), None
        events: list[Event] = []
        if item["type"] == "mcp_call":
            item["output"] = output
            item["error"] = None if error is None else {"type": "tool_execution_error", "message": error}
            outcome = "completed" if error is None else "failed"
            events.append(
                server_event(f"response.mcp_call.{outcome}", item_id=item["id"], output_index=len(self.items))
            )
        else:
            item["status"] = "completed" if error is None else "incomplete"
        events.append(self._on_item("response.output_item.done", item))
        self._finish(item)
        return events

    def close_open_parts(self, status: str, error: str, previous_item_id: str | None) -> list[Event]:
        """For a response that ends early: whatever is open is closed."""
        events = self.close_message(status, previous_item_id)
        if self._call is not None:
            events += self.close_call(error=error)
        return events

    def done(self, status: str, details: Event | None, usage: Event | None) -> list[Event]:
        return [server_event("response.done", response=self.to_wire(status, details, usage))]

    def _finish(self, item: Event) -> None:
        self.items.append(item)

    def _on_item(self, event_type: str, item: Event) -> Event:
        return server_event(event_type, response_id=self.id, output_index=len(self.items), item=dict(item))

    def _on_part(self, event_type: str, **fields: Any) -> Event:
        return server_event(
            event_type,
            response_id=self.id,
            item_id=self.message_id,
            output_index=len(self.items),
            content_index=0,
            **fields,
        )

    def _on_call(self, suffix: str, separator: str = ".", **fields: Any) -> Event:
        call = self.call
        extra = {} if call["type"] == "mcp_call" else {"call_id": call["call_id"]}
        return server_event(
            f"response.{call['type']}{separator}{suffix}",
            response_id=self.id,
            item_id=call["id"],
            output_index=len(self.items),
            **extra,
            **fields,
        )


def _message(item_id: str, status: str, content: list[Event]) -> Event:
    return {
        "id": item_id,
        "object": "realtime.item",
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": content,
    }
