"""What to do with the KV of contexts whose tool is running: the contract between the engine and its policies.

All amounts are tokens of KV (a context's bytes are a constant times them), all times seconds, all waste token-seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class Timing(Protocol):
    """How long this model takes on this device."""

    @property
    def saturation_tokens(self) -> int:
        """S: query tokens a step past which it grows longer with every token (InferCept, section 4.2)."""
        ...

    def forward_s(self, query_tokens: int, context_tokens: int) -> float:
        """T_fwd: one step that computes `query_tokens`, its sequences being `context_tokens` long in sum."""
        ...

    def swap_s(self, tokens: int) -> float:
        """T_swap: moving the KV of `tokens` one way between device and host."""
        ...


@dataclass(frozen=True, slots=True)
class Call:
    """The tool call that a context waits for. `argument_class` groups calls of one tool that last alike; `expected_s`
    is a hint of the caller; `actual_s` is known in a replay only, and only the oracles look at it."""

    tool: str
    argument_class: str = ""
    expected_s: float | None = None
    actual_s: float | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """A held context. `device_tokens` and `host_tokens` are in KV and no other context's (shared blocks are free to
    keep and gain nothing when dropped); `moving_tokens` are on their way out and count as neither; `context_tokens` is
    the length of its text. `elapsed_s` is the time since the call."""

    id: int
    arrival: int
    call: Call
    elapsed_s: float
    context_tokens: int
    device_tokens: int
    host_tokens: int = 0
    moving_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Load:
    """The rest of the engine at this step."""

    running_tokens: int
    """C_other: KV on the device of contexts that run."""
    query_tokens: int
    """Tokens that the running contexts compute in a step without prefill."""
    waiting_tokens: int
    """Tokens that cannot be computed for want of memory."""
    free_tokens: int
    pool_tokens: int
    host_free_tokens: int
    swap_out_tokens: int
    """What may leave the device during this step without making it longer (N_i under constraints a-c)."""
    queue_delay_s: float = 0.0
    """How long a context that came back without its KV waited, lately, until it was computed again."""
    leaving_tokens: int = 0
    """On their way to the host: their memory is free soon."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Gives up `drop_tokens` of a context's KV from its head on, and moves `swap_tokens` to the host from its tail on,
    so that it can be restored from both ends at once. What is neither stays. Rounded to whole blocks by whoever obeys;
    moves past the budget make the step wait for them."""

    context: int
    drop_tokens: int = 0
    swap_tokens: int = 0


class Policy(Protocol):
    """Asked before every step while contexts are held."""

    name: str
    keeps_arrival: bool
    """Whether a resumed context queues by its first arrival; else behind everybody."""
    stalls: bool
    """Whether steps wait for its moves; else moves keep to the budget."""

    def decide(self, held: Sequence[Held], load: Load) -> list[Decision]:
        """For the contexts whose layout is to change, in the order in which the budget is to be spent."""
        ...

    def moves_preempted(self, tokens: int, load: Load) -> bool:
        """Whether a running context that has to make room should be moved to the host; else its KV is dropped."""
        ...

    def observe(self, call: Call, seconds: float) -> None:
        """A call has ended after `seconds`."""
        ...
