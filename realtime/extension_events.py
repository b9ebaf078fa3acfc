"""The server events of the extension, as clients see them. They are published as a schema (`web/api_schema.py`); tests
hold what is emitted against them."""

from __future__ import annotations

from typing import Any, Literal

from realtime.session_config import WireModel


class ServerEvent(WireModel):
    """`seq` counts the events of a session and is what a client resumes after; replies to one socket have none."""

    event_id: str
    seq: int | None = None


class BufferUpdated(ServerEvent):
    """Edits up to this revision are in the buffer; `length` in the session's offset unit."""

    type: Literal["input_text_buffer.updated"]
    revision: int
    length: int


class BufferCleared(ServerEvent):
    type: Literal["input_text_buffer.cleared"]
    revision: int


class BufferCommitted(ServerEvent):
    type: Literal["input_text_buffer.committed"]
    revision: int
    item_id: str
    previous_item_id: str | None = None


class PrefillEvent(ServerEvent):
    """How much of the unsent text has been read; `tokens` of the session have KV."""

    type: Literal["midstream.prefill"]
    revision: int
    prefilled_chars: int
    tokens: int


class NoteStarted(ServerEvent):
    type: Literal["midstream.inference.started"]
    revision: int
    index: int
    segment: str


class NoteDelta(ServerEvent):
    type: Literal["midstream.inference.delta"]
    revision: int
    index: int
    delta: str


class NoteDone(ServerEvent):
    type: Literal["midstream.inference.done"]
    revision: int
    index: int
    action: Literal["inference", "wait"]
    text: str


class NoteDiscarded(ServerEvent):
    type: Literal["midstream.inference.discarded"]
    revision: int
    index: int
    reason: str


class StrategyChosen(ServerEvent):
    type: Literal["midstream.strategy"]
    revision: int
    strategy: Literal["off", "prefill", "draft", "notes"]
    reason: str


class DraftStarted(ServerEvent):
    type: Literal["midstream.draft.started"]
    revision: int


class DraftTool(ServerEvent):
    type: Literal["midstream.draft.tool"]
    revision: int
    name: str


class DraftDiscarded(ServerEvent):
    type: Literal["midstream.draft.discarded"]
    revision: int
    reason: str
    tokens: int


class PartialOutput(WireModel):
    start: int
    text: str


class ToolProgressed(ServerEvent):
    type: Literal["midstream.tool.progress"]
    item_id: str
    progress: float
    total: float | None
    message: str
    partial: PartialOutput | None = None


class KvState(ServerEvent):
    type: Literal["midstream.kv.state"]
    state: Literal["preserved", "swapped", "restored", "discarded"]
    reason: str
    tokens: int
    bytes: int


class Truncated(ServerEvent):
    type: Literal["midstream.truncated"]
    items: int


class TurnEnded(ServerEvent):
    """Times in milliseconds from commit."""

    type: Literal["midstream.turn"]
    response_id: str
    strategy: str
    ttft_ms: float | None
    complete_ms: float
    input_tokens: int
    cached_tokens: int
    prefilled_before_commit: int
    notes: int
    drafts: int
    draft: Literal["promoted", "partly_used", "unused"] | None
    draft_tokens: int
    draft_wasted_tokens: int


class Trace(ServerEvent):
    """Time stamps in seconds since the epoch, of a keystroke or, with a `response_id`, of a turn."""

    type: Literal["midstream.trace"]
    response_id: str | None = None
    web_received_at: float
    web_posted_at: float
    host_received_at: float
    host_token_at: float | None = None
    engine_asked_at: float | None = None
    engine_started_at: float | None = None
    engine_ended_at: float | None = None
    engine: list[dict[str, float]] | None = None
    resumes: list[dict[str, float]] | None = None


class Snapshot(WireModel):
    items: list[dict[str, Any]]
    response: dict[str, Any] | None
    revision: int


class SessionResumed(ServerEvent):
    type: Literal["midstream.session.resumed"]
    from_event_id: int
    last_event_id: int
    snapshot: Snapshot | None = None


EVENTS: dict[str, type[ServerEvent]] = {
    model.model_fields["type"].annotation.__args__[0]: model  # type: ignore[union-attr]
    for model in ServerEvent.__subclasses__()
}
