"""When the engine says that it is full, instead of letting everybody wait."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from engine.context import Context


class Overloaded(Exception):
    """Becomes the error `engine_overloaded`; says what is full."""


@dataclass(frozen=True, slots=True)
class Admission:
    """Limits on what is open and on what waits for its first token. Held and background contexts never count as
    waiting: neither a tool that hangs nor thinking ahead is a reason to refuse what somebody has sent."""

    max_contexts: int
    max_waiting: int
    max_waiting_tokens: int

    def check_open(self, contexts: int) -> None:
        """Raises `Overloaded` when no further context fits."""
        if contexts >= self.max_contexts:
            raise Overloaded(f"all {self.max_contexts} contexts are in use")

    def check_generate(self, pending: Iterable[Context], tokens: int) -> None:
        """Raises `Overloaded` when a foreground generation with `tokens` to compute would have to queue too long
        behind `pending`. Where nothing waits it may be as long as it likes."""
        waiting = [context for context in pending if waits_for_first_token(context)]
        if len(waiting) >= self.max_waiting:
            raise Overloaded(f"{len(waiting)} generations are waiting; the limit is {self.max_waiting}")
        total = sum(context.pending for context in waiting) + tokens
        if waiting and total > self.max_waiting_tokens:
            raise Overloaded(f"{total} prompt tokens would be waiting; the limit is {self.max_waiting_tokens}")


def waits_for_first_token(context: Context) -> bool:
    """Whether somebody waits for the first word of an answer."""
    generation = context.generation
    if context.priority != "foreground" or context.held:
        return False
    return generation is not None and not generation.output_tokens
