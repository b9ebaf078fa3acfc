"""The body of POST /v1/chat/completions: what is understood, what may be ignored, what must be refused."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError, model_validator
from pydantic_core import PydanticCustomError, from_json

from engine.messages import Grammar, Sampling
from web.errors import ApiError

# Parameters that change nothing about the answer here.
_IGNORED = frozenset({"user", "metadata", "store", "service_tier", "parallel_tool_calls", "safety_identifier",
                      "prompt_cache_key", "prompt_cache_retention", "reasoning_effort", "verbosity"})  # fmt: skip
# Unsupported parameters, with the values that ask for nothing unsupported.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
}


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class TextPart(_Strict):
    type: Literal["text"]
    text: str


def _kind(value: Any) -> str:
    return "<list>" if isinstance(value, list) else "<str>"


Content = Annotated[Annotated[str, Tag("<str>")] | Annotated[list[TextPart], Tag("<list>")], Discriminator(_kind)]


class Message(_Strict):
    role: Literal["system", "developer", "user", "assistant"]
    content: Content

    def to_wire(self) -> dict[str, str]:
        """As the node wants it: one text, and the role names that chat templates know."""
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class StreamOptions(_Strict):
    include_usage: bool = False


class PlainFormat(_Strict):
    type: Literal["text", "json_object"]


class NamedSchema(_Strict):
    name: str
    schema_: Annotated[dict[str, Any], Field(alias="schema")] = {}


class SchemaFormat(_Strict):
    type: Literal["json_schema"]
    json_schema: NamedSchema


def _format_kind(value: Any) -> str:
    return "<schema>" if isinstance(value, dict) and value.get("type") == "json_schema" else "<plain>"


Format = Annotated[
    Annotated[PlainFormat, Tag("<plain>")] | Annotated[SchemaFormat, Tag("<schema>")], Discriminator(_format_kind)
]
Stop = Annotated[str, Field(min_length=1, max_length=256)]
Penalty = Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)]
TokenId = Annotated[str, Field(pattern=r"^\d{1,9}$")]
Bias = Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]


class CompletionRequest(_Strict):
    """Greedy unless `temperature` says otherwise, like the rest of Midstream. `top_k`, `min_p` and
    `repetition_penalty` are extra body fields, as vLLM has them."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    model: str
    messages: Annotated[list[Message], Field(min_length=1)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Field(ge=1, le=2**31)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, le=2**31)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=2**31)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10, allow_inf_nan=False)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: Annotated[dict[TokenId, Bias], Field(max_length=1024)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: (
        Annotated[
            Annotated[str, Field(max_length=256), Tag("<str>")]
            | Annotated[list[Stop], Field(max_length=4), Tag("<list>")],
            Discriminator(_kind),
        ]
        | None
    ) = None
    n: Annotated[int, Field(ge=1, le=16)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    response_format: Format | None = None

    @model_validator(mode="after")
    def _check_combinations(self) -> CompletionRequest:
        if self.top_logprobs and not self.logprobs:
            raise PydanticCustomError("top_logprobs", "top_logprobs: only with logprobs")
        if self.stops and self.grammar is not None:
            raise PydanticCustomError("stop", "stop: not with a JSON response_format, which a stop would cut short")
        return self

    @property
    def token_limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) and self.stop else list(self.stop or [])

    @property
    def sampling(self) -> Sampling:
        """Without the seed, which may be None."""
        names = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        bias = {int(token): value for token, value in (self.logit_bias or {}).items()}
        return Sampling(top_k=max(self.top_k or 0, 0), logit_bias=bias, **given)

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
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


def parse_completion_request(body: bytes) -> CompletionRequest:
    """Raises `ApiError` 400 with code invalid_json, invalid_value, missing_required_parameter or
    unsupported_parameter, naming the parameter."""
    try:
        data = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise ApiError(400, "invalid_json", f"the body is not valid JSON: {error}") from None
    if not isinstance(data, dict):
        raise ApiError(400, "invalid_json", "the body must be a JSON object")
    _refuse_unsupported(data)
    try:
        return CompletionRequest.model_validate(data)
    except ValidationError as error:
        raise _invalid(error) from None


def _refuse_unsupported(data: dict[str, Any]) -> None:
    for name, value in data.items():
        if name in CompletionRequest.model_fields or name in _IGNORED or value is None:
            continue
        if value not in _NEUTRAL.get(name, ()):
            raise ApiError(400, "unsupported_parameter", f"{name[:100]}: not supported here", name[:100])


def _invalid(error: ValidationError) -> ApiError:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    param = ""
    for part in first["loc"]:
        if isinstance(part, int):
            param += f"[{part}]"
        elif not part.startswith("<") and part != "[key]":  # tags of union members; which side of an entry is wrong
            param += f".{part}" if param else part
    code = "missing_required_parameter" if first["type"] == "missing" else "invalid_value"
    if not param:  # a rule about several parameters, named after the first of them
        return ApiError(400, code, first["msg"], first["type"])
    return ApiError(400, code, f"{param}: {first['msg']}", param)
