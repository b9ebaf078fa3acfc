"""The body of POST /v1/chat/completions: what is understood, what may be ignored, what must be refused."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError
from pydantic_core import from_json

from web.errors import ApiError

# Parameters that change nothing about the answer here.
_IGNORED = frozenset({"user", "metadata", "store", "service_tier", "parallel_tool_calls", "safety_identifier",
                      "prompt_cache_key", "prompt_cache_retention", "reasoning_effort", "verbosity"})  # fmt: skip
# Unsupported parameters, with the values that ask for nothing unsupported.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "logit_bias": ({},),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "stop": ([], ""),
    "response_format": ({"type": "text"},),
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


class CompletionRequest(_Strict):
    """Greedy unless `temperature` says otherwise, like the rest of Midstream."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    model: str
    messages: Annotated[list[Message], Field(min_length=1)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Field(ge=1, le=2**31)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, le=2**31)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None

    @property
    def token_limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

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
        elif not part.startswith("<"):  # tags of union members
            param += f".{part}" if param else part
    code = "missing_required_parameter" if first["type"] == "missing" else "invalid_value"
    return ApiError(400, code, f"{param}: {first['msg']}", param)
