"""MARS (arXiv 2410.18248): what is done with a call is decided once, when it begins, by how long it should last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from engine.interception import waste
from engine.interception.estimator import History
from engine.interception.policies.pressure import relieve
from engine.interception.policy import Call, Decision, Held, Load, Timing

_PRIOR_MEAN_S = 2.0

_Choice = Literal["preserve", "discard", "swap"]


class Mars:
    """The predicted duration is the tool's mean. The choice with the least waste of eq. 1 to 3 holds for the whole
    call; what is moved leaves as the budget lets it."""

    name = "mars"
    keeps_arrival = True
    stalls = False

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._history = History()
        self._choices: dict[int, _Choice] = {}

    def decide(self, held: Sequence[Held], load: Load) -> list[Decision]:
        """See `Policy`."""
        self._choices = {one.id: self._choices.get(one.id) or self._choose(one, load) for one in held}
        budget = min(load.swap_out_tokens, load.host_free_tokens)
        decisions = []
        for one in held:
            choice = self._choices[one.id]
            if choice == "discard" and one.device_tokens:
                decisions.append(Decision(one.id, drop_tokens=one.device_tokens))
            elif choice == "swap" and budget > 0 and one.device_tokens:
                moved = min(one.device_tokens, budget)
                budget -= moved
                decisions.append(Decision(one.id, swap_tokens=moved))
        return relieve(decisions, held, load, lambda one: -one.elapsed_s)

    def moves_preempted(self, tokens: int, load: Load) -> bool:
        """See `Policy`."""
        return False

    def observe(self, call: Call, seconds: float) -> None:
        """See `Policy`."""
        self._history.observe(Call(call.tool), seconds)

    def _choose(self, one: Held, load: Load) -> _Choice:
        known = self._history.of(Call(one.call.tool))
        seconds = known.mean if known is not None else one.call.expected_s or _PRIOR_MEAN_S
        tokens, others = one.device_tokens, load.running_tokens
        wastes: dict[_Choice, float] = {
            "preserve": waste.preserve(tokens, seconds),
            "discard": waste.discard(self._timing, tokens, others),
            "swap": waste.swap(self._timing, tokens, tokens + others),
        }
        return min(wastes, key=lambda choice: wastes[choice])
