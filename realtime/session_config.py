"""What a session is configured to do: patches from the client and the full effective configuration."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from realtime.errors import ProtocolError

Strategy = Literal["off", "prefill", "draft", "notes", "auto"]
OffsetUnit = Literal["utf16", "code_points"]
MAX_INT = 2**63 - 1


def by_type(value: Any) -> str:
    """Union members are tagged <like this>, so that error paths can leave them out."""
    type_ = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return f"<{type_}>" if isinstance(type_, str) else "<str>" if isinstance(value, str) else "<other>"


def by_kind(value: Any) -> str:
    return "<dict>" if isinstance(value, BaseModel) else f"<{type(value).__name__}>"


class WireModel(BaseModel):
    """No type coercion; unknown fields are accepted and stay readable in `model_extra`."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True, protected_namespaces=())


ToolName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,128}$")]


class FunctionTool(WireModel):
    """A function that the client runs."""

    type: Literal["function"]
    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ToolNames(WireModel):
    tool_names: list[ToolName] | None = None


AllowedTools = Annotated[
    Annotated[list[ToolName], Tag("<list>")] | Annotated[ToolNames, Tag("<dict>")], Discriminator(by_kind)
]
RequireApproval = Annotated[
    Annotated[Literal["never", "always"], Tag("<str>")] | Annotated[dict[str, Any], Tag("<dict>")],
    Discriminator(by_kind),
]


class McpTool(WireModel):
    """A server-run tool service; `allowed_tools` None means all its tools."""

    type: Literal["mcp"]
    server_label: Annotated[str, Field(min_length=1, max_length=128)]
    allowed_tools: AllowedTools | None = None
    require_approval: RequireApproval | None = None

    @property
    def allowed_names(self) -> list[str] | None:
        """The names in `allowed_tools` in either of its two forms."""
        return self.allowed_tools.tool_names if isinstance(self.allowed_tools, ToolNames) else self.allowed_tools


class FunctionChoice(WireModel):
    type: Literal["function"]
    name: ToolName


class McpChoice(WireModel):
    type: Literal["mcp"]
    server_label: str
    name: ToolName | None = None


def _only_text(modalities: list[str]) -> list[str]:
    if modalities not in ([], ["text"]):
        raise PydanticCustomError("unsupported_modality", 'only ["text"] is supported')
    return modalities


def _distinct_names(tools: list[Tool]) -> list[Tool]:
    names = [tool.name if isinstance(tool, FunctionTool) else f"mcp:{tool.server_label}" for tool in tools]
    if len(set(names)) < len(names):
        raise PydanticCustomError("duplicate_tool", "two tools have the same name")
    return tools


Tool = Annotated[
    Annotated[FunctionTool, Tag("<function>")] | Annotated[McpTool, Tag("<mcp>")],
    Discriminator(by_type),
]
Tools = Annotated[list[Tool], Field(max_length=128), AfterValidator(_distinct_names)]
ToolChoice = Annotated[
    Annotated[Literal["auto", "none", "required"], Tag("<str>")]
    | Annotated[FunctionChoice, Tag("<function>")]
    | Annotated[McpChoice, Tag("<mcp>")],
    Discriminator(by_type),
]
MaxOutputTokens = Annotated[
    Annotated[int, Field(ge=1, le=MAX_INT), Tag("<int>")] | Annotated[Literal["inf"], Tag("<str>")],
    Discriminator(by_kind),
]
Events = Annotated[
    Annotated[bool, Tag("<bool>")] | Annotated[list[Annotated[str, Field(max_length=64)]], Tag("<list>")],
    Discriminator(by_kind),
]
Modalities = Annotated[list[str], AfterValidator(_only_text)]
MetadataKey = Annotated[str, Field(max_length=64)]
MetadataValue = Annotated[str, Field(max_length=512)]
Metadata = Annotated[dict[MetadataKey, MetadataValue], Field(max_length=16)]

Temperature = Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)]
TopP = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
TopK = Annotated[int, Field(ge=0, le=1_000_000)]
MinP = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Seed = Annotated[int, Field(ge=0, le=MAX_INT)]


class RetentionRatio(WireModel):
    type: Literal["retention_ratio"]
    retention_ratio: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


Truncation = Annotated[
    Annotated[Literal["auto", "disabled"], Tag("<str>")] | Annotated[RetentionRatio, Tag("<retention_ratio>")],
    Discriminator(by_type),
]


class Sampling(WireModel):
    """How tokens are chosen. `temperature` 0 is greedy; `seed` None lets the server draw one per response."""

    model_config = ConfigDict(extra="ignore")

    temperature: Temperature = 0.0
    top_p: TopP = 1.0
    top_k: TopK = 0
    min_p: MinP = 0.0
    seed: Seed | None = None


class SamplingPatch(WireModel):
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: MinP | None = None
    seed: Seed | None = None


class MidstreamPatch(WireModel):
    """`events` chooses the families of `midstream.*` events: all, none, or those named."""

    strategy: Strategy | None = None
    lossless: bool | None = None
    events: Events | None = None
    sampling: SamplingPatch | None = None
    offsets: OffsetUnit | None = None


class MidstreamOverrides(WireModel):
    sampling: SamplingPatch | None = None


class _Overridable(WireModel):
    """What both a session and one response can set. Bare sampling fields are the short form of `midstream.sampling`."""

    instructions: str | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    max_output_tokens: MaxOutputTokens | None = None
    output_modalities: Modalities | None = None
    metadata: Metadata | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    seed: Seed | None = None


class SessionPatch(_Overridable):
    """The `session` of `session.update`: an absent field stays as it is, null or empty clears it."""

    type: Literal["realtime"] | None = None
    model: str | None = None
    truncation: Truncation | None = None
    midstream: MidstreamPatch | None = None


class ResponseOptions(_Overridable):
    """The `response` of `response.create`: what differs from the session; null means the session's value.

    `input` (raw items, see `conversation.item_from_client`) replaces the conversation as context.
    """

    conversation: Literal["auto", "none"] = "auto"
    input: list[dict[str, Any]] | None = None
    midstream: MidstreamOverrides | None = None


class SessionConfig(WireModel):
    """The full effective configuration of a session. Immutable; also the snapshot that a response runs with."""

    model_config = ConfigDict(extra="ignore")

    model: str
    instructions: str = ""
    tools: list[Tool] = []
    tool_choice: ToolChoice = "auto"
    max_output_tokens: MaxOutputTokens = "inf"
    output_modalities: list[str] = ["text"]
    metadata: dict[str, str] = {}
    truncation: Truncation = "auto"
    sampling: Sampling = Sampling()
    strategy: Strategy = "auto"
    lossless: bool = True
    events: Events = False
    offsets: OffsetUnit = "utf16"

    @model_validator(mode="after")
    def _choice_is_possible(self) -> SessionConfig:
        """Kept out of the patch models, because tools and choice may come in different patches."""
        choice = self.tool_choice
        if isinstance(choice, FunctionChoice):
            known = any(isinstance(tool, FunctionTool) and tool.name == choice.name for tool in self.tools)
        elif isinstance(choice, McpChoice):
            known = any(_offers(tool, choice) for tool in self.tools)
        else:
            known = choice != "required" or bool(self.tools)
        if not known:
            raise ProtocolError("tool_not_found", "tool_choice asks for a tool that is not in tools", "tool_choice")
        return self

    def apply(self, patch: SessionPatch) -> SessionConfig:
        """This configuration with the fields that are present in `patch`.

        Raises `ProtocolError`: model_not_found for another model, tool_not_found for an impossible `tool_choice`.
        """
        if patch.model and patch.model != self.model:
            raise ProtocolError("model_not_found", "the model of a session cannot be changed", "session.model")
        changes = self._overrides(patch, patch.model_fields_set - {"type", "model", "midstream"})
        if "midstream" in patch.model_fields_set:
            nested = patch.midstream or _CLEARED
            named = nested.model_fields_set - {"sampling"}
            changes |= {name: _value_or_default(name, getattr(nested, name)) for name in named & _FIELDS}
            if "sampling" in nested.model_fields_set:
                base = Sampling() if nested.sampling is None else changes.get("sampling", self.sampling)
                changes["sampling"] = _patched_sampling(base, nested.sampling)
        return self._with(changes, "session")

    def for_response(self, options: ResponseOptions) -> SessionConfig:
        """The snapshot that a response with these options runs with. Raises `ProtocolError` as `apply` does."""
        given = {name for name in options.model_fields_set if getattr(options, name) is not None}
        changes = self._overrides(options, given - {"conversation", "input", "midstream"})
        if options.midstream and options.midstream.sampling:
            changes["sampling"] = _patched_sampling(changes.get("sampling", self.sampling), options.midstream.sampling)
        return self._with(changes, "response")

    def wants_event(self, type: str) -> bool:
        """Whether a server event may be sent: all but those `midstream.<family>.*` that were not asked for."""
        namespace, _, rest = type.partition(".")
        if namespace != "midstream" or isinstance(self.events, bool):
            return namespace != "midstream" or self.events is True
        return rest.partition(".")[0] in self.events

    def to_wire(self) -> dict[str, Any]:
        """The `session` object of `session.created` and `session.updated`."""
        dumped = self.model_dump(mode="json", exclude_none=True)
        midstream = {name: dumped.pop(name) for name in ("strategy", "lossless", "events", "offsets", "sampling")}
        fixed = {"object": "realtime.session", "parallel_tool_calls": False, "tracing": None, "prompt": None}
        return {"type": "realtime", **dumped, **fixed, "midstream": midstream}

    def _overrides(self, patch: _Overridable, names: set[str]) -> dict[str, Any]:
        bare = names & _BARE_SAMPLING
        changes = {name: _value_or_default(name, getattr(patch, name)) for name in (names - bare) & _FIELDS}
        if bare:
            values = {name: getattr(patch, name) for name in bare}
            changes["sampling"] = _patched_sampling(self.sampling, SamplingPatch.model_construct(bare, **values))
        return changes

    def _with(self, changes: dict[str, Any], root: str) -> SessionConfig:
        values = {name: getattr(self, name) for name in _FIELDS}
        try:
            return SessionConfig(**(values | changes))
        except ProtocolError as error:
            error.param = f"{root}.{error.param}"
            raise


_CLEARED = MidstreamPatch(strategy=None, lossless=None, events=None, sampling=None, offsets=None)
_FIELDS = frozenset(SessionConfig.model_fields)
_BARE_SAMPLING = frozenset({"temperature", "top_p", "seed"})


def _value_or_default(name: str, value: Any) -> Any:
    """Null and empty clear a field, that is, bring its default back."""
    if value is None or value in ("", [], {}):
        return SessionConfig.model_fields[name].get_default()
    return value


def _patched_sampling(base: Sampling, patch: SamplingPatch | None) -> Sampling:
    if patch is None:
        return base
    defaults = Sampling()
    values = {name: getattr(patch, name) for name in patch.model_fields_set & set(Sampling.model_fields)}
    cleared = {name: getattr(defaults, name) for name, value in values.items() if value is None}
    return base.model_copy(update=values | cleared)


def _offers(tool: FunctionTool | McpTool, choice: McpChoice) -> bool:
    if not isinstance(tool, McpTool) or tool.server_label != choice.server_label:
        return False
    return choice.name is None or tool.allowed_names is None or choice.name in tool.allowed_names
