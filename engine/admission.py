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
    waiting: thinking ahead is no reason to refuse what somebody has sent."""

    max_contexts: int
    max_waiting: int
    max_waiting_tokens: int

    def check_open(self, contexts: int) -> None:
        """Raises `Overloaded` when no further context fits."""
        if contexts >= self.max_contexts:
            raise Overloaded(f"all {self.max_contexts} contexts are in use")

    def check_generate(self, pending: Iterable[Context], tokens: int) -> None:
        """Raises `Overloaded` when a foreground generation with `tokens` to compute would have to queue too long."""
        waiting = [c for c in pending if c.priority == "foreground" and not c.is_decoding]
        if len(waiting) >= self.max_waiting:
            raise Overloaded(f"{len(waiting)} generations are waiting; the limit is {self.max_waiting}")
        total = sum(context.pending for context in waiting) + tokens
        if waiting and total > self.max_waiting_tokens:
            raise Overloaded(f"{total} prompt tokens would be waiting; the limit is {self.max_waiting_tokens}")
