"""Policies that do the same with every call, or look at its duration only: InferCept's baselines (its section 5)."""

from __future__ import annotations

from collections.abc import Sequence

from engine.interception.policies.pressure import longest, relieve
from engine.interception.policy import Call, Decision, Held, Load

_PRESERVE_BELOW_S = 4.0
_SWAP_BELOW_S = 7.0


class _Forgetful:
    """Learns nothing."""

    keeps_arrival = True
    stalls = False

    def moves_preempted(self, tokens: int, load: Load) -> bool:
        """See `Policy`."""
        return False

    def observe(self, call: Call, seconds: float) -> None:
        """See `Policy`."""


class Preserve(_Forgetful):
    """All of it stays."""

    name = "preserve"

    def decide(self, held: Sequence[Held], load: Load) -> list[Decision]:
        """See `Policy`."""
        return relieve([], held, load, longest)


class ImprovedDiscard(_Forgetful):
    """All of it is dropped; whoever comes back queues by its first arrival."""

    name = "improved-discard"

    def decide(self, held: Sequence[Held], load: Load) -> list[Decision]:
        """See `Policy`."""
        return [Decision(one.id, drop_tokens=one.device_tokens) for one in held if one.device_tokens]


class Discard(ImprovedDiscard):
    """All of it is dropped, and whoever comes back queues behind everybody, like a new request."""

    name = "discard"
    keeps_arrival = False


class Swap(_Forgetful):
    """All of it is moved to the host, and all steps wait for that; dropped when the host is full."""

    name = "swap"
    stalls = True

    def decide(self, held: Sequence[Held], load: Load) -> list[Decision]:
        """See `Policy`."""
        room = load.host_free_tokens
        decisions = []
        for one in held:
            moved = min(one.device_tokens, max(room, 0))
            room -= moved
            if one.device_tokens:
                decisions.append(Decision(one.id, one.device_tokens - moved, moved))
        return relieve(decisions, held, load, longest)


class Heuristic(_Forgetful):
    """By the duration of the call, if known: below 4 s it stays, below 7 s it is moved, else it is dropped (H-B)."""

    name = "heuristic"

    def decide(self, held: Sequence[Held], load: Load) -> list[Decision]:
        """See `Policy`."""
        budget = min(load.swap_out_tokens, load.host_free_tokens)
        decisions = []
        for one in held:
            seconds = one.call.actual_s if one.call.actual_s is not None else one.call.expected_s
            if seconds is None:
                seconds = one.elapsed_s
            if seconds < _PRESERVE_BELOW_S or not one.device_tokens:
                continue
            if seconds >= _SWAP_BELOW_S:
                decisions.append(Decision(one.id, drop_tokens=one.device_tokens))
            elif budget > 0:
                moved = min(one.device_tokens, budget)
                budget -= moved
                decisions.append(Decision(one.id, swap_tokens=moved))
        return relieve(decisions, held, load, longest)
