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
KvLocation = Literal["device", "host", "none"]
KvDecision = Literal["preserve", "swap", "discard", "restore"]
ToolState = Literal["started", "progress", "finished", "failed", "cancelled"]
ToolOutcome = Literal["accepted", "clipped", "rejected"]


class Sampling(msgspec.Struct, frozen=True):
    """How the next token is chosen. `temperature` 0 is greedy; random numbers depend on (seed, position) only.

    `repetition_penalty` divides (or, below zero, multiplies) the logits of every token of the context so far;
    `presence_penalty` and `frequency_penalty` are subtracted once, or once per occurrence, for generated tokens only.
    `logit_bias` is added to the logits of the tokens it names. Grammars win over all of them.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}


class Grammar(msgspec.Struct, frozen=True):
    """A constraint on generated text; generation stops by itself when the grammar is complete.

    `given` is the beginning of the constrained text that stands at the end of the prompt already.
    """

    kind: Literal["json_schema", "regex"]
    source: str
    given: str = ""


class GenerateParams(msgspec.Struct, frozen=True):
    """`stop_token_ids` end the generation and are neither emitted nor kept in the context.

    `top_logprobs` asks for the log probability of each emitted token and of that many most likely ones (0 = only the
    emitted token's; None = none). They are those of the model: before temperature, penalties, bias and grammar.

    `draft` is a guess at the answer, e.g. one made from an earlier revision of the text. It is verified, never
    believed: the tokens are the same with and without it. `speculate` allows guesses by prompt lookup as well.
    """

    max_tokens: int
    sampling: Sampling = Sampling()
    stop_token_ids: list[int] = []
    grammar: Grammar | None = None
    top_logprobs: int | None = None
    draft: list[int] = []
    speculate: bool = True


# Commands: the eight verbs, opening, and priority. `context` and `generation` ids are chosen by the client.


class Open(msgspec.Struct, tag="open"):
    """A new, empty context of `Ready.models[model]`. Contexts of one `payer` (a session) share its allowance of
    background tokens; forks inherit both."""

    context: int
    priority: Priority
    model: int = 0
    payer: int = 0


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
    """Stops running and keeps a soft claim on the KV.

    `call` names what it waits for, for `ToolEvent`; `tool` and `argument_class` say what kind of call that is, so that
    the engine can learn how long it lasts. `expected_s` is the caller's estimate of the pause; `actual_s` is the truth,
    which a replay knows, and which only the policies that claim to know it look at.
    """

    context: int
    reason: HoldReason
    expected_s: float | None = None
    call: str = ""
    tool: str = ""
    argument_class: str = ""
    actual_s: float | None = None


class ToolEvent(msgspec.Struct, tag="tool"):
    """What happens to the call that a context is held for: a hint, answered by `ToolAck`, that never changes tokens.

    `started` begins the time of the call anew; `progress` says that it will last for another `expected_s`; after
    `finished`, `failed` or `cancelled` the result is on its way, and KV on the host is brought back. Said twice, any of
    them is as good as once.
    """

    context: int
    call: str
    state: ToolState
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


Command = Open | Append | Generate | Cancel | Truncate | Fork | Hold | Resume | Close | SetPriority | ToolEvent


# Outputs


class ModelInfo(msgspec.Struct, frozen=True):
    """One model of the engine and its KV pool. `weights` is bf16, fp32, int8 or q4; `runner` native or transformers."""

    name: str
    runner: str
    weights: str
    max_context: int
    block_size: int
    kv_blocks: int
    bytes_per_token: int


class Ready(msgspec.Struct, tag="ready"):
    """First frame on a connection. `epoch` is new for every engine process: KV of another epoch is gone.

    `models[0]` answers; a second one, where configured, thinks.
    """

    epoch: str
    device: str
    dtype: str
    models: list[ModelInfo]


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Natural log probabilities of one emitted token and of the most likely tokens in its place, best first."""

    chosen: float
    top: list[tuple[int, float]]


class Tokens(msgspec.Struct, tag="tokens"):
    """`logprobs` has one entry per token, or is empty when none were asked for."""

    context: int
    generation: int
    tokens: list[int]
    logprobs: list[TokenLogprobs] = []


class Finished(msgspec.Struct, tag="finished"):
    """End of a generation. `cached_tokens` of the `prompt_tokens` were in KV when `generate` arrived;
    `received_at`, `first_scheduled_at` and `first_token_at` are seconds (0.0 = never). Of `drafted_tokens` guesses
    `accepted_tokens` were right."""

    context: int
    generation: int
    reason: FinishReason
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    received_at: float
    first_scheduled_at: float
    first_token_at: float
    drafted_tokens: int = 0
    accepted_tokens: int = 0


class Prefilled(msgspec.Struct, tag="prefilled"):
    """How many of a context's tokens are now in KV and how many of them a step that prefilled it computed (0: found
    in the prefix cache), and when that step began and ended."""

    context: int
    kv_tokens: int
    computed: int
    started_at: float = 0.0
    ended_at: float = 0.0


class KvMoved(msgspec.Struct, tag="kv"):
    """KV of so many tokens of a context changed place; `location` is where it is now (a held context is first reported
    when the hold begins)."""

    context: int
    location: KvLocation
    tokens: int
    bytes: int
    decision: KvDecision
    reason: str


class ToolAck(msgspec.Struct, tag="ack"):
    """The answer to a `ToolEvent`. `code` as in HTTP: 200; 404, nothing is held for such a call; 409, the call has
    ended already. A `clipped` estimate was longer than the engine believes in."""

    context: int
    call: str
    state: ToolState
    outcome: ToolOutcome
    code: int


class Failed(msgspec.Struct, tag="failed"):
    """A command was refused. `code`: context_length_exceeded, engine_overloaded, invalid_value."""

    context: int
    generation: int
    code: str
    message: str


Item = Tokens | Finished | Prefilled | KvMoved | ToolAck | Failed


class Step(msgspec.Struct, tag="step"):
    """All that one engine step (or one batch of commands) produced, in order."""

    started_at: float
    ended_at: float
    items: list[Item]


class Stats(msgspec.Struct, tag="stats"):
    """Twice a second, idle or not: a heartbeat with the gauges of the dashboard. Blocks and tokens over all models.

    `blocks_free` includes `blocks_cached`: blocks that no context refers to, kept for their prefix until needed.
    The counters (`steps` and below) grow for the life of the process.
    """

    at: float
    blocks_free: int
    blocks_cached: int
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
    prefix_hit_tokens: int
    drafted_tokens: int
    accepted_tokens: int
    preemptions: int
    recomputed_tokens: int = 0
    swapped_out_tokens: int = 0
    swapped_in_tokens: int = 0
    blocks_host: int = 0
    awaited: int = 0
    """Foreground generations without a first token."""
    memory: dict[str, float] = {}
    """Token-seconds of the KV pools by what held them (see `engine.interception.ledger`)."""


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
