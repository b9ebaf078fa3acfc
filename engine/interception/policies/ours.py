"""Keep, move or drop: one rule over the three, driven by how long calls of a kind have lasted.

For a held context, keeping costs a token its remaining time; dropping costs it a price, the break-even time of eq. 5,
paid once; moving costs next to nothing but room on the link. Keeping until a time limit and dropping then is ski
rental: with the durations of calls like this one the best limit is known; without them, or where they have proved
wrong, the limit is the price itself, which never wastes more than twice what knowing the future would (Karlin et al.,
1994).

The link carries so many tokens a step, and each is worth what moving it saves: the lesser of its remaining time and its
price. So the budget is a fractional knapsack, filled by saving per token. What should be dropped waits for the link if
that is sooner free than the price is worth, and otherwise loses its head first: the tail can still be moved, and a
context is restored from both ends at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from engine.interception import waste
from engine.interception.estimator import Durations, History
from engine.interception.policies.pressure import relieve
from engine.interception.policy import Call, Decision, Held, Load, Timing

_TRUST = 0.8
_PRICE_CHANGE = 0.2
_MOST_SCORES = 4096


@dataclass(frozen=True, slots=True)
class Terms:
    """What of the rule is in force; each can be switched off to see what it is worth."""

    hazard: bool = True
    """Durations of like calls; else the elapsed rule only."""
    fallback: bool = True
    """The elapsed rule where durations have proved wrong."""
    classes: bool = True
    """Durations by argument class as well as by tool."""
    knapsack: bool = True
    """The budget by saving per token; else by saving in sum, as in the paper."""
    partial: bool = True
    """A context may be moved in part and dropped in part."""
    queue: bool = True
    """The price includes the wait of a context that comes back without its KV."""


@dataclass(slots=True)
class _Score:
    """What both rules would have cost so far, in prices."""

    learned: float = 0.0
    elapsed: float = 0.0


@dataclass(frozen=True, slots=True)
class _Case:
    """A held context at this step: seconds, per token."""

    one: Held
    price_s: float
    remaining_s: float
    limit_s: float

    @property
    def worth_s(self) -> float:
        """What not having a token on the device saves at least."""
        return min(self.remaining_s, self.price_s)

    @property
    def is_due(self) -> bool:
        return self.one.elapsed_s >= self.limit_s

    @property
    def waited_enough(self) -> bool:
        """Whether waiting for the link has cost as much as dropping does."""
        return self.one.elapsed_s >= self.limit_s + self.price_s


class Ours:
    """See above."""

    name = "ours"
    keeps_arrival = True
    stalls = False

    def __init__(self, timing: Timing, terms: Terms | None = None) -> None:
        self._timing = timing
        self._terms = terms or Terms()
        self._history = History()
        self._scores: dict[str, _Score] = {}
        self._limits: dict[int, tuple[float, float]] = {}
        self._price_s = 0.0

    def decide(self, held: Sequence[Held], load: Load) -> list[Decision]:
        """See `Policy`."""
        cases = [self._case(one, load) for one in held if one.device_tokens]
        self._limits = {case.one.id: (case.limit_s, case.price_s) for case in cases}
        moved = self._fill_budget(cases, load)
        dropped = self._drop_due(cases, moved, load)
        decisions = [
            Decision(case.one.id, dropped.get(case.one.id, 0), moved.get(case.one.id, 0))
            for case in cases
            if case.one.id in dropped or case.one.id in moved
        ]
        loss = {case.one.id: case.price_s - min(case.remaining_s, case.price_s) for case in cases}
        return relieve(decisions, held, load, lambda one: loss.get(one.id, math.inf))

    def moves_preempted(self, tokens: int, load: Load) -> bool:
        """See `Policy`. Moving costs the link twice, and computing again what it adds to steps."""
        queries, others = load.query_tokens, load.running_tokens
        again = self._timing.forward_s(queries + tokens, others + tokens) - self._timing.forward_s(queries, others)
        return 2 * self._timing.swap_s(tokens) < again

    def observe(self, call: Call, seconds: float) -> None:
        """See `Policy`."""
        call = self._kind(call)
        known, price = self._history.of(call), self._price_s
        if known is not None and price > 0 and (call.tool in self._scores or len(self._scores) < _MOST_SCORES):
            score = self._scores.setdefault(call.tool, _Score())
            score.learned += _cost(seconds, known.limit(0.0, price), price) / price
            score.elapsed += _cost(seconds, price, price) / price
        self._history.observe(call, seconds)

    def _case(self, one: Held, load: Load) -> _Case:
        queue_s = load.queue_delay_s if self._terms.queue else 0.0
        price = waste.break_even_s(self._timing, one.device_tokens, load.query_tokens, load.running_tokens, queue_s)
        self._price_s = price
        known = self._trusted(one.call)
        remaining = known.remaining(one.elapsed_s) if known is not None else None
        if remaining is None and one.call.expected_s is not None and one.call.expected_s > one.elapsed_s:
            remaining = one.call.expected_s - one.elapsed_s
        limit = self._limit(one, price, known)
        return _Case(one, price, one.elapsed_s if remaining is None else remaining, limit)

    def _limit(self, one: Held, price: float, known: Durations | None) -> float:
        if known is None or not known.longer_than(one.elapsed_s):
            return price
        limit, old_price = self._limits.get(one.id, (math.nan, math.inf))
        # The best limit stays the best while the call goes on, as long as the price does.
        if abs(old_price - price) <= _PRICE_CHANGE * price:
            return limit
        return known.limit(one.elapsed_s, price)

    def _trusted(self, call: Call) -> Durations | None:
        call = self._kind(call)
        score = self._scores.get(call.tool)
        if not self._terms.hazard:
            return None
        if self._terms.fallback and score is not None and score.learned > _TRUST * score.elapsed:
            return None
        return self._history.of(call)

    def _kind(self, call: Call) -> Call:
        return call if self._terms.classes else Call(call.tool)

    def _fill_budget(self, cases: list[_Case], load: Load) -> dict[int, int]:
        """Tokens to move, by context."""
        budget = min(load.swap_out_tokens, load.host_free_tokens)
        if budget <= 0:
            return {}
        tokens_of = (lambda case: 1) if self._terms.knapsack else (lambda case: case.one.device_tokens)
        moved: dict[int, int] = {}
        for case in sorted(cases, key=lambda case: case.worth_s * tokens_of(case), reverse=True):
            # On its way out and back in a token is held on the device without use.
            if budget <= 0 or case.worth_s <= 2 * self._timing.swap_s(1):
                break
            if case.one.device_tokens > budget and not self._terms.partial:
                continue
            moved[case.one.id] = min(case.one.device_tokens, budget)
            budget -= moved[case.one.id]
        return moved

    def _drop_due(self, cases: list[_Case], moved: dict[int, int], load: Load) -> dict[int, int]:
        """Tokens to drop, by context: past their limit, they would wait for the link for longer than they are worth."""
        link_s = self._timing.swap_s(1)
        room = load.host_free_tokens - sum(moved.values())
        dropped: dict[int, int] = {}
        ahead = 0
        for case in sorted((case for case in cases if case.is_due), key=lambda case: case.worth_s, reverse=True):
            left = case.one.device_tokens - moved.get(case.one.id, 0)
            # Half of the link is for what comes back.
            waits = min(max(int(case.price_s / (2 * link_s)) - ahead, 0), max(room, 0), left) if link_s > 0 else 0
            if case.waited_enough or (not self._terms.partial and waits < left):
                waits = 0
            ahead, room = ahead + waits, room - waits
            if left > waits:
                dropped[case.one.id] = left - waits
        return dropped


def _cost(seconds: float, limit: float, price: float) -> float:
    return seconds if seconds <= limit else limit + price
