"""A policy that does anything at all: what is said must not depend on it."""

from __future__ import annotations

import random
from collections.abc import Sequence

from engine.interception.policy import Call, Decision, Held, Load


class RandomPolicy:
    """See `Policy`. Drops and moves random ranges, also more than there are."""

    name = "random"
    keeps_arrival = True
    stalls = False

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def decide(self, held: Sequence[Held], load: Load) -> list[Decision]:
        """Most of the time nothing, so that there is something left to be moved."""
        return [self._decision(one) for one in held if self._rng.random() < 0.4]

    def moves_preempted(self, tokens: int, load: Load) -> bool:
        """Now and then."""
        return self._rng.random() < 0.5

    def observe(self, call: Call, seconds: float) -> None:
        """Learns nothing."""

    def _decision(self, one: Held) -> Decision:
        drop, swap = (self._rng.choice([0, 0, self._rng.randint(0, one.context_tokens)]) for _ in range(2))
        return Decision(one.id, drop, swap)
