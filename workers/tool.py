"""What a tool implementation gets, and how it says that it failed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class ToolError(Exception):
    """The call failed; the message is written for the model and the user."""


class ToolContext:
    """A running call's line to the outside. `cancelled` asks Redis, so call it a few times a second at most.

    `partial` takes the next piece of the output while the tool still runs, as often as it likes. The model reads it
    then already; what `run` returns counts, and costs the least time when it begins with the pieces.
    """

    def __init__(
        self,
        progress: Callable[[float, float | None, str], None],
        cancelled: Callable[[], bool],
        partial: Callable[[str], None],
    ) -> None:
        self.progress = progress
        self.cancelled = cancelled
        self.partial = partial


Run = Callable[[dict[str, Any], ToolContext], str]
