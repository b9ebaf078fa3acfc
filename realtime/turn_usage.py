"""What a turn cost in tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from engine.messages import Finished


@dataclass
class TurnUsage:
    """`input_tokens` is the prompt of the first generation; `output_tokens` counts all, tool calls included."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    finished: list[Finished] = field(default_factory=list)
    is_promoted: bool = False

    def began(self, prompt_tokens: int, cached_tokens: int) -> None:
        """A generation begins; only the first one's prompt counts. Known even if the turn is stopped."""
        if not self.input_tokens:
            self.input_tokens, self.cached_tokens = prompt_tokens, min(cached_tokens, prompt_tokens)

    def promoted(self, prompt_tokens: int, cached_tokens: int) -> None:
        """The first generation began before Send; the engine's count would be that of its beginning."""
        self.began(prompt_tokens, cached_tokens)
        self.is_promoted = True

    def generated(self, tokens: int) -> None:
        self.output_tokens += tokens

    def add(self, finished: Finished) -> None:
        """The engine's own count of the first prompt wins: more may have been prefilled meanwhile."""
        if not self.finished and not self.is_promoted:
            self.input_tokens, self.cached_tokens = finished.prompt_tokens, finished.cached_tokens
        self.finished.append(finished)

    def to_wire(self) -> dict[str, Any]:
        return {
            "total_tokens": self.input_tokens + self.output_tokens,
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "input_token_details": {"cached_tokens": self.cached_tokens, "text_tokens": self.input_tokens},
            "output_token_details": {"text_tokens": self.output_tokens},
        }
