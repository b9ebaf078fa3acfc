"""InferCept's min-waste policy (arXiv 2402.01869, section 4.3), with its estimator and with the truth."""

from __future__ import annotations

from collections.abc import Sequence

from engine.interception import waste
from engine.interception.policies.pressure import relieve
from engine.interception.policy import Call, Decision, Held, Load, Timing


class InferCept:
    """Takes a call to last as long again as it has lasted: T_INT = now - start, looked at anew before each step.

    Moving within the budget wastes nothing, so the budget goes to those with the greatest min(W_P, W_CD); of the others
    each is kept or dropped, whichever wastes less (eq. 5).
    """

    name = "infercept"
    keeps_arrival = True
    stalls = False

    def __init__(self, timing: Timing) -> None:
        self._timing = timing

    def decide(self, held: Sequence[Held], load: Load) -> list[Decision]:
        """See `Policy`."""
        priced = []
        for one in held:
            if one.device_tokens:
                keep = waste.preserve(one.device_tokens, self._remaining(one))
                drop = waste.marginal_discard(self._timing, one.device_tokens, load.query_tokens, load.running_tokens)
                priced.append((min(keep, drop), keep >= drop, one))
        priced.sort(key=lambda item: item[0], reverse=True)
        budget = min(load.swap_out_tokens, load.host_free_tokens)
        decisions = []
        for least, is_dropped, one in priced:
            moved = min(one.device_tokens, budget) if least > 0 else 0
            budget -= moved
            dropped = one.device_tokens - moved if is_dropped else 0
            if moved or dropped:
                decisions.append(Decision(one.id, dropped, moved))
        return relieve(decisions, held, load, lambda one: -self._remaining(one))

    def moves_preempted(self, tokens: int, load: Load) -> bool:
        """See `Policy`."""
        return False

    def observe(self, call: Call, seconds: float) -> None:
        """Learns nothing."""

    def _remaining(self, one: Held) -> float:
        return one.elapsed_s


class Oracle(InferCept):
    """Knows how long calls last, as the published code does."""

    name = "oracle"

    def _remaining(self, one: Held) -> float:
        return one.elapsed_s if one.call.actual_s is None else max(one.call.actual_s - one.elapsed_s, 0.0)
