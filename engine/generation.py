"""One `generate` in progress: its parameters, what it has said, and what it guesses to say next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from engine.messages import FinishReason, GenerateParams

if TYPE_CHECKING:
    from engine.model.grammar import Matcher, PendingMatcher
    from engine.model.sampler import TokenCounts
    from engine.speculation import Proposer


@dataclass(slots=True, eq=False)
class Generation:
    """Times are `time.time()` seconds, 0.0 = not yet.

    `ready` is False while its grammar is compiled: until then the last token is not computed, so nothing is sampled.
    `proposal` is a guessed continuation to be verified in the next step; `drafted_tokens` counts all tokens so
    proposed and computed, `accepted_tokens` those that came true. `lost_kv`: it goes on after a hold during which some
    of its KV was given up or moved.
    """

    id: int
    params: GenerateParams
    max_tokens: int
    stop_token_ids: frozenset[int]
    prompt_tokens: int
    cached_tokens: int
    received_at: float
    compiling: PendingMatcher | None = None
    matcher: Matcher | None = None
    counts: TokenCounts | None = None
    proposer: Proposer | None = None
    proposal: list[int] = field(default_factory=list)
    output_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    first_scheduled_at: float = 0.0
    first_token_at: float = 0.0
    lost_kv: bool = False

    @property
    def ready(self) -> bool:
        return self.compiling is None

    def take(self, token: int) -> FinishReason | None:
        """A sampled token that is to be emitted; says why the generation ends with it, if it does."""
        self.output_tokens += 1
        if self.counts is not None:
            self.counts.add(token)
        if self.matcher is not None:
            self.matcher.accept(token)
            if self.matcher.is_finished:
                return "stop"
        return "length" if self.output_tokens >= self.max_tokens else None

    def propose(self, tokens: Sequence[int]) -> None:
        """Guesses what follows `tokens`, never past the end of the generation."""
        if self.proposer is None:
            return
        room = self.max_tokens - self.output_tokens - 1
        proposal = self.proposer.propose(tokens)[: max(room, 0)]
        stop = next((i for i, token in enumerate(proposal) if token in self.stop_token_ids), len(proposal))
        self.proposal = proposal[:stop] if self.matcher is None else self.matcher.allowed(proposal[:stop])
