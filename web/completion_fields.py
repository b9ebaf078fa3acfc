"""What the bodies of /v1/chat/completions and /v1/responses have in common: how tokens are chosen, and how a body that
is wrong is refused."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError
from pydantic_core import from_json

from engine.messages import Sampling
from web.errors import ApiError


class Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


def by_shape(value: Any) -> str:
    """Tags for unions of a string and a list."""
    return "<list>" if isinstance(value, list) else "<str>"


Stop = Annotated[str, Field(min_length=1, max_length=256)]
Penalty = Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)]
TokenId = Annotated[str, Field(pattern=r"^\d{1,9}$")]
Bias = Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]
TokenLimit = Annotated[int, Field(ge=1, le=2**31)]
TopLogprobs = Annotated[int, Field(ge=0, le=20)]


class GenerationFields(Strict):
    """Greedy unless `temperature` says otherwise, like the rest of Midstream. `top_k`, `min_p` and
    `repetition_penalty` are extra body fields, as vLLM has them."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    model: str
    stream: bool | None = None
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
            Discriminator(by_shape),
        ]
        | None
    ) = None
    parallel_tool_calls: bool | None = None

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


Fields = TypeVar("Fields", bound=GenerationFields)


def parse_body(
    body: bytes, fields: type[Fields], ignored: Collection[str], neutral: Mapping[str, tuple[Any, ...]]
) -> Fields:
    """The body as `fields`. Parameters that these do not know are refused, unless they are `ignored`, or have one of
    the `neutral` values, which ask for nothing.

    Raises `ApiError` 400 with code invalid_json, invalid_value, missing_required_parameter or unsupported_parameter,
    naming the parameter.
    """
    try:
        data = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise ApiError(400, "invalid_json", f"the body is not valid JSON: {error}") from None
    if not isinstance(data, dict):
        raise ApiError(400, "invalid_json", "the body must be a JSON object")
    for name, value in data.items():
        if name not in fields.model_fields and name not in ignored and value not in (None, *neutral.get(name, ())):
            raise ApiError(400, "unsupported_parameter", f"{name[:100]}: not supported here", name[:100])
    try:
        return fields.model_validate(data)
    except ValidationError as error:
        raise _invalid(error) from None


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
    # pydantic's own words for this one are about tags, which the client knows nothing of
    message = "Input has the wrong type" if first["type"] == "union_tag_invalid" else first["msg"]
    return ApiError(400, code, f"{param}: {message}", param)
