"""Preserve: what is held stays, until work that runs needs the memory."""

from __future__ import annotations

from collections.abc import Sequence

from engine.interception.policy import Call, Decision, Held, Load


class Preserve:
    """See `Policy`. InferCept's baseline of that name."""

    name = "preserve"
    keeps_arrival = True

    def decide(self, held: Sequence[Held], load: Load) -> list[Decision]:
        """The longest held give way first."""
        missing = load.waiting_tokens - load.free_tokens
        decisions = []
        for one in sorted(held, key=lambda one: one.elapsed_s, reverse=True):
            if missing <= 0:
                break
            dropped = min(one.device_tokens, missing)
            decisions.append(Decision(one.id, drop_tokens=dropped))
            missing -= dropped
        return decisions

    def observe(self, call: Call, seconds: float) -> None:
        """Learns nothing."""
