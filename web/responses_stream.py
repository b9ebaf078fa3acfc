"""The parts of a completion as the events of /v1/responses, and the response object that they add up to. Pure."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from realtime.ids import new_id
from realtime.messages import CompletionPart, CompletionUsage, FunctionCallPart

Event = dict[str, Any]
_TEXT = "output_text"
_REASONING = "reasoning_text"


class ResponseEvents:
    """`begin`, `feed` for every part, then `end` and `last`, or `fail`. Each returns the events that it makes, numbered
    in order; `response` is the object as it is then. One item is open at a time: text, or reasoning."""

    def __init__(self, response: dict[str, Any]) -> None:
        self.response = response
        self._output: list[dict[str, Any]] = response["output"]
        self._number = 0
        self._open: dict[str, Any] | None = None
        self._cut = False

    def begin(self) -> list[Event]:
        return [self._whole("response.created"), self._whole("response.in_progress")]

    def feed(self, part: CompletionPart) -> list[Event]:
        events: list[Event] = []
        if part.reasoning:
            events += self._say(_REASONING, part.reasoning, [])
        if part.text or part.logprobs:
            events += self._say(_TEXT, part.text, msgspec.to_builtins(part.logprobs))
        for call in part.calls:
            events += [*self._close(), *self._call(call)]
        self._cut = self._cut or part.finish_reason == "length"
        return events

    def end(self, usage: CompletionUsage) -> list[Event]:
        """Closes what is open and completes `response`; only `last` is still to be said."""
        events: list[Event] = []
        if not self._output:
            events += self._open_item(_TEXT)
        status = "incomplete" if self._cut else "completed"
        events += self._close(status)
        self.response |= {"status": status, "usage": _usage(usage)}
        if self._cut:
            self.response["incomplete_details"] = {"reason": "max_output_tokens"}
        else:
            self.response["completed_at"] = int(time.time())
        return events

    def fail(self, code: str, message: str) -> list[Event]:
        """Instead of an end, or after it, but then without `last`."""
        events = self._close("incomplete")
        self.response |= {"status": "failed", "completed_at": None, "error": {"code": code, "message": message}}
        return [*events, self.last()]

    def last(self) -> Event:
        """`response.completed`, `.incomplete` or `.failed`."""
        return self._whole(f"response.{self.response['status']}")

    def _say(self, kind: str, text: str, logprobs: list[Any]) -> list[Event]:
        events: list[Event] = []
        if self._open is None or self._open["content"][0]["type"] != kind:
            events += [*self._close(), *self._open_item(kind)]
        assert self._open is not None
        part = self._open["content"][0]
        part["text"] += text
        extra = {}
        if kind == _TEXT:
            part["logprobs"] += logprobs
            extra = {"logprobs": logprobs}
        return [*events, self._event(f"response.{kind}.delta", **self._place(), delta=text, **extra)]

    def _open_item(self, kind: str) -> list[Event]:
        item: dict[str, Any] = {"id": new_id("msg_"), "type": "message", "role": "assistant"}
        if kind == _REASONING:
            item = {"id": new_id("rs_"), "type": "reasoning", "summary": []}
        added = self._add(item | {"content": [], "status": "in_progress"})
        self._open = self._output[-1] | {"content": [_empty(kind)]}
        self._output[-1] = self._open
        return [added, self._event("response.content_part.added", **self._place(), part=_empty(kind))]

    def _close(self, status: str = "completed") -> list[Event]:
        item, self._open = self._open, None
        if item is None:
            return []
        place = self._place(item)
        part = item["content"][0]
        item["status"] = status
        extra = {"logprobs": part["logprobs"]} if part["type"] == _TEXT else {}
        return [
            self._event(f"response.{part['type']}.done", **place, text=part["text"], **extra),
            self._event("response.content_part.done", **place, part=part),
            self._event("response.output_item.done", output_index=place["output_index"], item=item),
        ]

    def _call(self, call: FunctionCallPart) -> list[Event]:
        item = {"id": new_id("fc_"), "type": "function_call", "call_id": new_id("call_"), "name": call.name}
        added = self._add(item | {"arguments": "", "status": "in_progress"})
        place = {"item_id": item["id"], "output_index": len(self._output) - 1}
        self._output[-1] |= {"arguments": call.arguments, "status": "completed"}
        done = {"name": call.name, "arguments": call.arguments}
        return [
            added,
            self._event("response.function_call_arguments.delta", **place, delta=call.arguments),
            self._event("response.function_call_arguments.done", **place, **done),
            self._event("response.output_item.done", output_index=place["output_index"], item=self._output[-1]),
        ]

    def _add(self, item: dict[str, Any]) -> Event:
        self._output.append(item)
        return self._event("response.output_item.added", output_index=len(self._output) - 1, item={**item})

    def _place(self, item: dict[str, Any] | None = None) -> dict[str, Any]:
        item = item or self._open
        assert item is not None
        return {"item_id": item["id"], "output_index": len(self._output) - 1, "content_index": 0}

    def _whole(self, kind: str) -> Event:
        return self._event(kind, response={**self.response, "output": list(self._output)})

    def _event(self, kind: str, **fields: Any) -> Event:
        event = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return event


def _empty(kind: str) -> dict[str, Any]:
    part: dict[str, Any] = {"type": kind, "text": ""}
    return part | ({"annotations": [], "logprobs": []} if kind == _TEXT else {})


def _usage(usage: CompletionUsage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
