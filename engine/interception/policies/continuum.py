"""Continuum's time-to-live (arXiv 2511.02230): held KV is pinned until a deadline, then given up."""

from __future__ import annotations

import math
from collections.abc import Sequence

from engine.interception.estimator import History
from engine.interception.policies.pressure import relieve
from engine.interception.policy import Call, Decision, Held, Load, Timing

_PRIOR_MEAN_S = 2.0


class Continuum:
    """tau* = argmax P(tau) (T eta + reload) - tau over the observed durations and 0.

    P is how likely a call of this tool has ended by then, T how long a context that lost its KV waits in the queue, eta
    how much having run before says about how much is to come (1: the number of turns is fixed), reload the time to
    compute it again. Until a tool is known, all tools speak for it, then an exponential."""

    name = "continuum"
    keeps_arrival = True
    stalls = False

    def __init__(self, timing: Timing, *, eta: float = 1.0) -> None:
        self._timing = timing
        self._eta = eta
        self._history = History()

    def decide(self, held: Sequence[Held], load: Load) -> list[Decision]:
        """See `Policy`."""
        budget = min(load.swap_out_tokens, load.host_free_tokens)
        decisions = []
        for one in held:
            if not one.device_tokens or one.elapsed_s < self._time_to_live(one, load):
                continue
            moved = min(one.device_tokens, budget)
            budget -= moved
            decisions.append(Decision(one.id, one.device_tokens - moved, moved))
        return relieve(decisions, held, load, lambda one: -one.arrival)

    def moves_preempted(self, tokens: int, load: Load) -> bool:
        """See `Policy`."""
        return False

    def observe(self, call: Call, seconds: float) -> None:
        """See `Policy`."""
        self._history.observe(Call(call.tool), seconds)

    def _time_to_live(self, one: Held, load: Load) -> float:
        reload_s = self._timing.forward_s(load.query_tokens + one.device_tokens, load.running_tokens)
        gain = load.queue_delay_s * self._eta + reload_s
        known = self._history.of(Call(one.call.tool))
        if known is None:
            # P = 1 - exp(-tau / mean): the slope of gain P - tau is zero here.
            return _PRIOR_MEAN_S * math.log(max(gain / _PRIOR_MEAN_S, 1.0))
        durations = known.longer_than(-1.0)
        best, best_value = 0.0, 0.0
        for count, seconds in enumerate(durations, 1):
            value = count / len(durations) * gain - seconds
            if value > best_value:
                best, best_value = seconds, value
        return best
