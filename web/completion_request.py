"""The body of POST /v1/chat/completions: what is understood, what may be ignored, what must be refused."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from engine.messages import Grammar
from realtime.conversation import Item
from realtime.session_config import ToolName
from web.chat_messages import ChatMessage, to_items
from web.completion_fields import GenerationFields, Strict, TokenLimit, TopLogprobs, parse_body

# Parameters that change nothing about the answer here.
_IGNORED = frozenset({"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
                      "prompt_cache_retention", "reasoning_effort", "verbosity"})  # fmt: skip
# Unsupported parameters, with the values that ask for nothing unsupported.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
}


class StreamOptions(Strict):
    include_usage: bool = False


class Function(Strict):
    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None


class FunctionTool(Strict):
    type: Literal["function"]
    function: Function

    def to_wire(self) -> dict[str, Any]:
        """Flat, as the realtime API has it."""
        return {"type": "function", **self.function.model_dump(exclude_none=True)}


class FunctionName(Strict):
    name: ToolName


class NamedFunction(Strict):
    type: Literal["function"]
    function: FunctionName


def _choice_kind(value: Any) -> str:
    return "<named>" if isinstance(value, dict) else "<str>"


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("<str>")] | Annotated[NamedFunction, Tag("<named>")],
    Discriminator(_choice_kind),
]


class PlainFormat(Strict):
    type: Literal["text", "json_object"]


class NamedSchema(Strict):
    name: str
    schema_: Annotated[dict[str, Any], Field(alias="schema")] = {}


class SchemaFormat(Strict):
    type: Literal["json_schema"]
    json_schema: NamedSchema


def _format_kind(value: Any) -> str:
    return "<schema>" if isinstance(value, dict) and value.get("type") == "json_schema" else "<plain>"


Format = Annotated[
    Annotated[PlainFormat, Tag("<plain>")] | Annotated[SchemaFormat, Tag("<schema>")], Discriminator(_format_kind)
]


class CompletionRequest(GenerationFields):
    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    stream_options: StreamOptions | None = None
    max_tokens: TokenLimit | None = None
    max_completion_tokens: TokenLimit | None = None
    n: Annotated[int, Field(ge=1, le=16)] | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    response_format: Format | None = None
    tools: Annotated[list[FunctionTool], Field(max_length=128)] | None = None
    tool_choice: ToolChoice | None = None

    @model_validator(mode="after")
    def _check_combinations(self) -> CompletionRequest:
        if self.top_logprobs and not self.logprobs:
            raise PydanticCustomError("top_logprobs", "top_logprobs: only with logprobs")
        if self.stops and self.grammar is not None:
            raise PydanticCustomError("stop", "stop: not with a JSON response_format, which a stop would cut short")
        names = [tool.function.name for tool in self.tools or []]
        if len(set(names)) < len(names):
            raise PydanticCustomError("tools", "tools: two functions have the same name")
        if isinstance(self.tool_choice, NamedFunction) and self.tool_choice.function.name not in names:
            raise PydanticCustomError("tool_choice", "tool_choice: asks for a function that is not in tools")
        if self.tool_choice == "required" and not names:
            raise PydanticCustomError("tool_choice", "tool_choice: asks for a call, but there are no tools")
        return self

    @property
    def items(self) -> list[Item]:
        """The conversation. Raises `ApiError` 400 for tool results without their calls."""
        return to_items(self.messages)

    @property
    def token_limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def top_logprobs_wanted(self) -> int | None:
        """As the engine counts: None for none at all."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def grammar(self) -> Grammar | None:
        if isinstance(self.response_format, SchemaFormat):
            return Grammar("json_schema", json.dumps(self.response_format.json_schema.schema_, ensure_ascii=False))
        if self.response_format is not None and self.response_format.type == "json_object":
            return Grammar("json_schema", '{"type": "object"}')
        return None

    @property
    def choice(self) -> str | dict[str, Any]:
        """`tool_choice` as the realtime API has it."""
        if isinstance(self.tool_choice, NamedFunction):
            return {"type": "function", "name": self.tool_choice.function.name}
        return self.tool_choice or "auto"

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


def parse_completion_request(body: bytes) -> CompletionRequest:
    """Raises `ApiError` 400 as `parse_body` does."""
    return parse_body(body, CompletionRequest, _IGNORED, _NEUTRAL)
