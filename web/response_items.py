"""The `input` of a response as a conversation, and conversation items as a client of /v1/responses sees them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from realtime.conversation import FunctionCall, FunctionCallOutput, Item, Message
from realtime.ids import new_id
from realtime.session_config import ToolName
from web.completion_fields import Strict, by_shape
from web.errors import ApiError


class TextPart(Strict):
    type: Literal["input_text", "output_text", "text"]
    text: str


Content = Annotated[Annotated[str, Tag("<str>")] | Annotated[list[TextPart], Tag("<list>")], Discriminator(by_shape)]
CallId = Annotated[str, Field(min_length=1, max_length=128)]


class InputMessage(Strict):
    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Content


class InputCall(Strict):
    type: Literal["function_call"]
    call_id: CallId
    name: ToolName
    arguments: str


class InputCallOutput(Strict):
    type: Literal["function_call_output"]
    call_id: CallId
    output: Content


class InputReasoning(Strict):
    """No later answer gets to see it."""

    type: Literal["reasoning"]


def _by_type(value: Any) -> str:
    kind = value.get("type") if isinstance(value, dict) else None
    return f"<{kind}>" if kind in ("function_call", "function_call_output", "reasoning") else "<message>"


InputItem = Annotated[
    Annotated[InputMessage, Tag("<message>")]
    | Annotated[InputCall, Tag("<function_call>")]
    | Annotated[InputCallOutput, Tag("<function_call_output>")]
    | Annotated[InputReasoning, Tag("<reasoning>")],
    Discriminator(_by_type),
]
Input = Annotated[
    Annotated[str, Tag("<str>")] | Annotated[list[InputItem], Field(min_length=1), Tag("<list>")],
    Discriminator(by_shape),
]


def to_items(given: str | list[InputItem], earlier: list[Item]) -> list[Item]:
    """What the client brings after the `earlier` items, under ids of its own.

    Raises `ApiError` invalid_value for the output of a call that is not before it.
    """
    if isinstance(given, str):
        return [Message(new_id("msg_"), "user", (given,))]
    items: list[Item] = []
    calls = {item.call_id for item in earlier if isinstance(item, FunctionCall)}
    for index, item in enumerate(given):
        match item:
            case InputMessage():
                role = "system" if item.role == "developer" else item.role
                items.append(Message(new_id("msg_"), role, (_text(item.content),)))
            case InputCall():
                items.append(FunctionCall(new_id("fc_"), item.call_id, item.name, item.arguments))
                calls.add(item.call_id)
            case InputCallOutput():
                if item.call_id not in calls:
                    param = f"input[{index}].call_id"
                    raise ApiError(400, "invalid_value", f"{param}: no item before is such a call", param)
                items.append(FunctionCallOutput(new_id("fco_"), item.call_id, _text(item.output)))
    return items


def to_wire(item: Item) -> dict[str, Any]:
    """An item of the input."""
    match item:
        case Message():
            part: dict[str, Any] = {"type": "input_text", "text": item.text}
            if item.role == "assistant":
                part = {"type": "output_text", "text": item.text, "annotations": []}
            return {"id": item.id, "type": "message", "role": item.role, "status": item.status, "content": [part]}
        case FunctionCallOutput():
            wire = {"call_id": item.call_id, "output": item.output, "status": item.status}
            return {"id": item.id, "type": "function_call_output", **wire}
        case FunctionCall():
            called = {"call_id": item.call_id, "name": item.name, "arguments": item.arguments, "status": item.status}
            return {"id": item.id, "type": "function_call", **called}
    raise TypeError(f"no input has {type(item).__name__}")


def output_items(output: list[dict[str, Any]]) -> list[Item]:
    """The output of a response as later prompts contain it: without reasoning."""
    items: list[Item] = []
    for wire in output:
        if wire["type"] == "message":
            items.append(Message(wire["id"], "assistant", tuple(part["text"] for part in wire["content"])))
        elif wire["type"] == "function_call":
            items.append(FunctionCall(wire["id"], wire["call_id"], wire["name"], wire["arguments"]))
    return items


def _text(content: str | list[TextPart]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)
