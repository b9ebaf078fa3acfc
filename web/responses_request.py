"""The body of POST /v1/responses: what is understood, what may be ignored, what must be refused."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from engine.messages import Grammar
from realtime.session_config import FunctionChoice, FunctionTool, Metadata, by_type
from web.completion_fields import GenerationFields, Strict, TokenLimit, TopLogprobs, parse_body
from web.response_items import Input

# Parameters that change nothing about the answer here.
_IGNORED = frozenset({"user", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
                      "prompt_cache_options", "reasoning", "max_tool_calls", "stream_options"})  # fmt: skip
# Unsupported parameters, with the values that ask for nothing unsupported.
_NEUTRAL: dict[str, tuple[Any, ...]] = {"background": (False,), "truncation": ("disabled",), "n": (1,)}
_LOGPROBS = "message.output_text.logprobs"


class TextFormat(Strict):
    type: Literal["text", "json_object"]


class SchemaFormat(Strict):
    type: Literal["json_schema"]
    name: str
    schema_: Annotated[dict[str, Any], Field(alias="schema")]


class TextOptions(Strict):
    format: (
        Annotated[
            Annotated[TextFormat, Tag("<text>")] | Annotated[SchemaFormat, Tag("<json_schema>")],
            Discriminator(lambda value: kind if (kind := by_type(value)) == "<json_schema>" else "<text>"),
        ]
        | None
    ) = None


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("<str>")] | Annotated[FunctionChoice, Tag("<function>")],
    Discriminator(lambda value: "<function>" if isinstance(value, dict) else "<str>"),
]


class ResponsesRequest(GenerationFields):
    """`seed`, `stop`, penalties and `logit_bias` are extra body fields here, as in chat completions."""

    input: Input
    instructions: str | None = None
    max_output_tokens: TokenLimit | None = None
    text: TextOptions | None = None
    tools: Annotated[list[FunctionTool], Field(max_length=128)] | None = None
    tool_choice: ToolChoice | None = None
    include: list[Literal["message.output_text.logprobs", "reasoning.encrypted_content"]] | None = None
    top_logprobs: TopLogprobs | None = None
    store: bool | None = None
    previous_response_id: Annotated[str, Field(max_length=64)] | None = None
    metadata: Metadata | None = None

    @model_validator(mode="after")
    def _check_combinations(self) -> ResponsesRequest:
        if self.stops and self.grammar is not None:
            raise PydanticCustomError("stop", "stop: not with a JSON text.format, which a stop would cut short")
        names = [tool.name for tool in self.tools or []]
        if len(set(names)) < len(names):
            raise PydanticCustomError("tools", "tools: two functions have the same name")
        if isinstance(self.tool_choice, FunctionChoice) and self.tool_choice.name not in names:
            raise PydanticCustomError("tool_choice", "tool_choice: asks for a function that is not in tools")
        if self.tool_choice == "required" and not names:
            raise PydanticCustomError("tool_choice", "tool_choice: asks for a call, but there are no tools")
        return self

    @property
    def is_stored(self) -> bool:
        return self.store is not False

    @property
    def wants_logprobs(self) -> bool:
        return _LOGPROBS in (self.include or [])

    @property
    def top_logprobs_wanted(self) -> int | None:
        """As the engine counts: None for none at all."""
        return (self.top_logprobs or 0) if self.wants_logprobs or self.top_logprobs else None

    @property
    def grammar(self) -> Grammar | None:
        wanted = self.text.format if self.text is not None else None
        if isinstance(wanted, SchemaFormat):
            return Grammar("json_schema", json.dumps(wanted.schema_, ensure_ascii=False))
        if wanted is not None and wanted.type == "json_object":
            return Grammar("json_schema", '{"type": "object"}')
        return None

    @property
    def choice(self) -> str | dict[str, Any]:
        """`tool_choice` as the realtime API has it."""
        if isinstance(self.tool_choice, FunctionChoice):
            return {"type": "function", "name": self.tool_choice.name}
        return self.tool_choice or "auto"

    def to_response(self, id: str, created_at: int, model: str) -> dict[str, Any]:
        """The response object as it begins."""
        wanted = self.text.format if self.text is not None else None
        return {
            "id": id,
            "object": "response",
            "created_at": created_at,
            "completed_at": None,
            "status": "in_progress",
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "metadata": self.metadata or {},
            "model": model,
            "output": [],
            "parallel_tool_calls": self.parallel_tool_calls is not False,
            "previous_response_id": self.previous_response_id,
            "reasoning": {"effort": None, "summary": None},
            "store": self.is_stored,
            "temperature": self.temperature or 0.0,
            "text": {"format": wanted.model_dump(by_alias=True) if wanted is not None else {"type": "text"}},
            "tool_choice": self.choice,
            "tools": [_tool(tool) for tool in self.tools or []],
            "top_logprobs": self.top_logprobs or 0,
            "top_p": 1.0 if self.top_p is None else self.top_p,
            "truncation": "disabled",
            "usage": None,
        }


def _tool(tool: FunctionTool) -> dict[str, Any]:
    strict = bool((tool.model_extra or {}).get("strict"))
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": strict,
    }


def parse_responses_request(body: bytes) -> ResponsesRequest:
    """Raises `ApiError` 400 as `parse_body` does."""
    return parse_body(body, ResponsesRequest, _IGNORED, _NEUTRAL)
