"""The `messages` of a chat completion as a conversation."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from realtime.conversation import FunctionCall, FunctionCallOutput, Item, Message
from realtime.session_config import ToolName
from web.completion_fields import Strict, by_shape
from web.errors import ApiError


class TextPart(Strict):
    type: Literal["text"]
    text: str


Content = Annotated[Annotated[str, Tag("<str>")] | Annotated[list[TextPart], Tag("<list>")], Discriminator(by_shape)]
CallId = Annotated[str, Field(min_length=1, max_length=128)]


class CalledFunction(Strict):
    name: ToolName
    arguments: str


class ToolCall(Strict):
    id: CallId
    type: Literal["function"] = "function"
    function: CalledFunction


class SpokenMessage(Strict):
    role: Literal["system", "developer", "user"]
    content: Content


class AssistantMessage(Strict):
    role: Literal["assistant"]
    content: Content | None = None
    tool_calls: list[ToolCall] | None = None


class ToolMessage(Strict):
    role: Literal["tool"]
    content: Content
    tool_call_id: CallId


def _by_role(value: Any) -> str:
    role = value.get("role") if isinstance(value, dict) else None
    return f"<{role}>" if role in ("assistant", "tool") else "<spoken>"


ChatMessage = Annotated[
    Annotated[SpokenMessage, Tag("<spoken>")]
    | Annotated[AssistantMessage, Tag("<assistant>")]
    | Annotated[ToolMessage, Tag("<tool>")],
    Discriminator(_by_role),
]


def to_items(messages: list[ChatMessage]) -> list[Item]:
    """The messages in order. Raises `ApiError` invalid_value for a tool result that answers no call before it, and
    missing_required_parameter for an assistant message that says nothing."""
    items: list[Item] = []
    calls: set[str] = set()
    for index, message in enumerate(messages):
        if isinstance(message, AssistantMessage):
            items += _answer(index, message)
            calls |= {call.id for call in message.tool_calls or []}
        elif isinstance(message, ToolMessage):
            if message.tool_call_id not in calls:
                param = f"messages[{index}].tool_call_id"
                raise ApiError(400, "invalid_value", f"{param}: no message before has such a tool call", param)
            items.append(FunctionCallOutput(f"{index}", message.tool_call_id, _text(message.content)))
        else:
            role: Literal["user", "system"] = "user" if message.role == "user" else "system"
            items.append(Message(f"{index}", role, (_text(message.content),)))
    return items


def _answer(index: int, message: AssistantMessage) -> list[Item]:
    if message.content is None and not message.tool_calls:
        param = f"messages[{index}].content"
        raise ApiError(400, "missing_required_parameter", f"{param}: needed without tool_calls", param)
    text = _text(message.content or "")
    calls = [
        FunctionCall(f"{index}.{number}", call.id, call.function.name, call.function.arguments)
        for number, call in enumerate(message.tool_calls or [])
    ]
    return [*([Message(f"{index}", "assistant", (text,))] if text or not calls else []), *calls]


def _text(content: str | list[TextPart]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)
