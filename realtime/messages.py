"""What web, session host and workers say to each other through Redis.

An inbox message goes to one node (`ms:node:{id}:inbox`), an outbox batch to one web process (`ms:web:{id}:out`).
Times are `time.time()` seconds, so that a trace can cross processes.
"""

from __future__ import annotations

from typing import Any

import msgspec

from engine.messages import Grammar, Sampling
from realtime.conversation import Item

# To a node


class Attach(msgspec.Struct, tag="attach"):
    """A socket now shows this session. `last_event_id` >= 0 asks for the events after that `seq`."""

    session: str
    connection: str
    web: str
    owner: str
    model: str = ""
    last_event_id: int = -1


class Detach(msgspec.Struct, tag="detach"):
    session: str
    connection: str


class ClientEvent(msgspec.Struct, tag="event"):
    """A client event that web has already validated (`realtime.events.parse_client_event`).

    `web` lets the node answer a socket that it does not know (yet) because it has just started. `number` counts the
    events of a connection from 1, so that a post that was retried over a reconnect is not obeyed twice (0: unknown).
    """

    session: str
    connection: str
    event: msgspec.Raw
    received_at: float
    posted_at: float = 0.0
    web: str = ""
    number: int = 0


class Completion(msgspec.Struct, tag="completion"):
    """One call of `/v1/chat/completions` or `/v1/responses`. Chunks go back as deliveries to `connection`; see
    `CompletionPart`.

    `seed` None asks for a fresh one; the one in `sampling` means nothing. `choices` answers are wanted. `tools` and
    `tool_choice` are what `realtime.session_config` knows by these names; without `parallel_tool_calls` an answer ends
    with its first call.
    """

    connection: str
    web: str
    items: list[Item]
    max_tokens: int | None
    sampling: Sampling
    seed: int | None
    received_at: float
    choices: int = 1
    stop: list[str] = []
    top_logprobs: int | None = None
    grammar: Grammar | None = None
    tools: list[dict[str, Any]] = []
    tool_choice: str | dict[str, Any] = "auto"
    parallel_tool_calls: bool = True


class CancelCompletion(msgspec.Struct, tag="cancel_completion"):
    connection: str


class ToolStarted(msgspec.Struct, tag="tool_started"):
    call: str
    attempt: int
    worker: str


class ToolProgress(msgspec.Struct, tag="tool_progress"):
    call: str
    attempt: int
    progress: float
    total: float | None = None
    message: str = ""


class ToolPartial(msgspec.Struct, tag="tool_partial"):
    """A piece of the output of a tool that still runs, which begins `start` characters into the output. Only a guess
    at the result: a run that begins anew begins at 0 again."""

    call: str
    attempt: int
    start: int
    text: str


class ToolResult(msgspec.Struct, tag="tool_result"):
    """First result of a call wins; `error` is empty on success."""

    call: str
    attempt: int
    output: str
    error: str
    started_at: float
    finished_at: float


ToolMessage = ToolStarted | ToolProgress | ToolPartial | ToolResult
InboxMessage = Attach | Detach | ClientEvent | Completion | CancelCompletion | ToolMessage

# To a web process


class Delivery(msgspec.Struct):
    """One JSON event for one socket (or one chat-completion request).

    `seq` repeats the event's own, so that a web process can drop a batch that a retried write delivered twice
    (-1: the event carries none).
    """

    connection: str
    event: msgspec.Raw
    seq: int = -1


class TopLogprob(msgspec.Struct):
    """A token as text and as bytes (which may be a part of a character), with its natural log probability."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    """A token of the answer, and the most likely ones in its place, best first."""

    top_logprobs: list[TopLogprob]


class CompletionUsage(msgspec.Struct):
    """Tokens of a whole call; the prompt counts once, however many choices there are."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int = 0


class FunctionCallPart(msgspec.Struct, frozen=True):
    """A whole call of one of the client's functions; `arguments` is a JSON object as text."""

    name: str
    arguments: str


class CompletionPart(msgspec.Struct, omit_defaults=True):
    """The `event` of a delivery that answers a `Completion`: the next piece of choice `index`.

    The last one of a choice has a `finish_reason`; the last one of the call has the `usage` or an error.
    """

    index: int = 0
    text: str = ""
    reasoning: str = ""
    logprobs: list[TokenLogprob] = []
    calls: list[FunctionCallPart] = []
    finish_reason: str = ""
    usage: CompletionUsage | None = None
    error_code: str = ""
    error_message: str = ""


# Between host and workers


class ToolJob(msgspec.Struct):
    """Arguments of the Celery task `midstream.run_tool`, as plain JSON."""

    call: str
    attempt: int
    node: str
    name: str
    arguments: str
    dispatched_at: float


# Measurements


class TurnRecord(msgspec.Struct):
    """One finished turn, for `/metrics` and `/admin` (stream `ms:turns`). Holds no text.

    Seconds since the epoch; 0.0 = did not happen. `spans` are `(name, start, end)` for the waterfall:
    typing, prefill, note, tool.
    """

    turn: str
    session: str
    node: str
    strategy: str
    status: str
    typing_started_at: float
    committed_at: float
    first_token_at: float
    done_at: float
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    prefilled_before_commit: int
    prefilled_after_commit: int
    notes: int
    spans: list[tuple[str, float, float]]


_inbox_decoder = msgspec.json.Decoder(InboxMessage)
_outbox_decoder = msgspec.json.Decoder(list[Delivery])
_encoder = msgspec.json.Encoder()


def encode(message: msgspec.Struct | list[Delivery]) -> bytes:
    """JSON, so that `XRANGE` by hand shows what happened."""
    return _encoder.encode(message)


def decode_inbox(payload: bytes) -> InboxMessage:
    """Raises `msgspec.DecodeError` for anything that is not an inbox message."""
    return _inbox_decoder.decode(payload)


def decode_outbox(payload: bytes) -> list[Delivery]:
    """Raises `msgspec.DecodeError`."""
    return _outbox_decoder.decode(payload)
