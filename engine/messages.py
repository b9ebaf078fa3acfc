"""The contract between the session host and the engine process: commands in, step outputs out.

Everything is token ids. A frame on the socket is a 4-byte big-endian length and one msgpack document
(`encode_*` / `decode_*`). All times are `time.time()` seconds. Contexts belong to the connection that opened them.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Priority = Literal["foreground", "background"]
FinishReason = Literal["stop", "length", "cancelled", "failed"]
HoldReason = Literal["tool", "idle"]
KvLocation = Literal["device", "none"]


class Sampling(msgspec.Struct, frozen=True):
    """How the next token is chosen. `temperature` 0 is greedy; random numbers depend on (seed, position) only."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0


class Grammar(msgspec.Struct, frozen=True):
    """A constraint on generated text; generation stops by itself when the grammar is complete.

    `given` is the beginning of the constrained text that stands at the end of the prompt already.
    """

    kind: Literal["json_schema", "regex"]
    source: str
    given: str = ""


class GenerateParams(msgspec.Struct, frozen=True):
    """`stop_token_ids` end the generation and are neither emitted nor kept in the context."""

    max_tokens: int
    sampling: Sampling = Sampling()
    stop_token_ids: list[int] = []
    grammar: Grammar | None = None


# Commands: the eight verbs, opening, and priority. `context` and `generation` ids are chosen by the client.


class Open(msgspec.Struct, tag="open"):
    context: int
    priority: Priority


class Append(msgspec.Struct, tag="append"):
    context: int
    tokens: list[int]


class Generate(msgspec.Struct, tag="generate"):
    context: int
    generation: int
    params: GenerateParams


class Cancel(msgspec.Struct, tag="cancel"):
    """Stops a running generation; the context keeps every token already emitted."""

    context: int


class Truncate(msgspec.Struct, tag="truncate"):
    """Forgets tokens from `length` on; cancels a running generation first."""

    context: int
    length: int


class Fork(msgspec.Struct, tag="fork"):
    """Opens `child` as a copy-on-write copy of all of `context`'s tokens."""

    context: int
    child: int
    priority: Priority


class Hold(msgspec.Struct, tag="hold"):
    """Stops running and keeps a soft claim on the KV. `expected_s` is the caller's estimate of the pause."""

    context: int
    reason: HoldReason
    expected_s: float | None = None


class Resume(msgspec.Struct, tag="resume"):
    """Ends a hold: appends `tokens` and, when `params` is given, generates on in the original arrival order."""

    context: int
    tokens: list[int]
    generation: int = 0
    params: GenerateParams | None = None


class Close(msgspec.Struct, tag="close"):
    context: int


class SetPriority(msgspec.Struct, tag="priority"):
    context: int
    priority: Priority


Command = Open | Append | Generate | Cancel | Truncate | Fork | Hold | Resume | Close | SetPriority


# Outputs


class Ready(msgspec.Struct, tag="ready"):
    """First frame on a connection. `epoch` is new for every engine process: KV of another epoch is gone."""

    epoch: str
    model: str
    device: str
    dtype: str
    max_context: int
    block_size: int
    kv_blocks: int
    bytes_per_token: int


class Tokens(msgspec.Struct, tag="tokens"):
    context: int
    generation: int
    tokens: list[int]


class Finished(msgspec.Struct, tag="finished"):
    """End of a generation. `cached_tokens` of the `prompt_tokens` were in KV when `generate` arrived;
    `received_at`, `first_scheduled_at` and `first_token_at` are seconds (0.0 = never)."""

    context: int
    generation: int
    reason: FinishReason
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    received_at: float
    first_scheduled_at: float
    first_token_at: float


class Prefilled(msgspec.Struct, tag="prefilled"):
    """After a step that prefilled this context: how many of its tokens are now in KV, how many it computed,
    and when that step began and ended."""

    context: int
    kv_tokens: int
    computed: int
    started_at: float = 0.0
    ended_at: float = 0.0


class KvMoved(msgspec.Struct, tag="kv"):
    """The KV of an idle or held context changed place (a held context is first reported when the hold begins)."""

    context: int
    location: KvLocation
    tokens: int
    bytes: int
    decision: Literal["preserve", "discard"]
    reason: str


class Failed(msgspec.Struct, tag="failed"):
    """A command was refused. `code`: context_length_exceeded, engine_overloaded, invalid_value."""

    context: int
    generation: int
    code: str
    message: str


Item = Tokens | Finished | Prefilled | KvMoved | Failed


class Step(msgspec.Struct, tag="step"):
    """All that one engine step (or one batch of commands) produced, in order."""

    started_at: float
    ended_at: float
    items: list[Item]


class Stats(msgspec.Struct, tag="stats"):
    """Twice a second, idle or not: a heartbeat with the gauges of the dashboard."""

    at: float
    blocks_free: int
    blocks_running: int
    blocks_idle: int
    blocks_held: int
    contexts: int
    running: int
    waiting: int
    steps: int
    step_seconds: float
    prefill_tokens: int
    decode_tokens: int


Output = Ready | Step | Stats

_encoder = msgspec.msgpack.Encoder()
_command_decoder = msgspec.msgpack.Decoder(list[Command])
_output_decoder = msgspec.msgpack.Decoder(Output)


def _frame(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "big") + payload


def encode_commands(commands: list[Command]) -> bytes:
    """One frame holding a batch of commands."""
    return _frame(_encoder.encode(commands))


def encode_output(output: Output) -> bytes:
    """One frame holding one output."""
    return _frame(_encoder.encode(output))


def decode_commands(payload: bytes) -> list[Command]:
    """Payload (without the length prefix) to commands. Raises `msgspec.DecodeError`."""
    return _command_decoder.decode(payload)


def decode_output(payload: bytes) -> Output:
    """Payload (without the length prefix) to an output. Raises `msgspec.DecodeError`."""
    return _output_decoder.decode(payload)
