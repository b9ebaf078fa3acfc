"""How long a call will last: what was seen of its tool, or of all tools where that is little."""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Sequence
from itertools import accumulate

from engine.interception.policy import Call

_WINDOW = 100
_ENOUGH = 5
_MOST_KEYS = 4096
_GLOBAL = ("", "")


class Durations:
    """The latest durations of one kind of call, in order of size."""

    def __init__(self) -> None:
        self._latest: deque[float] = deque()
        self._sorted: list[float] = []
        self._sums: list[float] | None = None

    def __len__(self) -> int:
        return len(self._sorted)

    def add(self, seconds: float) -> None:
        """One more; the oldest of more than a window goes."""
        if len(self._latest) == _WINDOW:
            del self._sorted[bisect_right(self._sorted, self._latest.popleft()) - 1]
        self._latest.append(seconds)
        insort(self._sorted, seconds)
        self._sums = None

    @property
    def mean(self) -> float:
        return sum(self._sorted) / len(self._sorted)

    def longer_than(self, seconds: float) -> Sequence[float]:
        """Those that lasted longer, in order."""
        return self._sorted[bisect_right(self._sorted, seconds) :]

    def remaining(self, elapsed: float) -> float | None:
        """The mean time that calls still took which had lasted for `elapsed`; None: none has."""
        index = bisect_right(self._sorted, elapsed)
        count = len(self._sorted) - index
        if not count:
            return None
        if self._sums is None:
            self._sums = [0.0, *accumulate(self._sorted)]
        return (self._sums[-1] - self._sums[index]) / count - elapsed

    def limit(self, elapsed: float, price: float) -> float:
        """The time limit that costs the least for a call that has lasted for `elapsed`: it costs what it lasts, or the
        limit and then `price`. Infinite: it is best waited for."""
        longer = self.longer_than(elapsed)
        count = len(longer)
        best, best_cost = elapsed, price
        if not count:
            return best
        total = 0.0
        for i, seconds in enumerate(longer, 1):
            total += seconds - elapsed
            # Waiting just until this one has ended.
            cost = (total + (count - i) * (seconds - elapsed + price)) / count
            if cost < best_cost:
                best, best_cost = seconds, cost
        return math.inf if best == longer[-1] else best


class History:
    """Durations by tool and argument class, by tool, and of all: the first that has enough of them answers."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, str], Durations] = {}

    def observe(self, call: Call, seconds: float) -> None:
        """A call has lasted for `seconds`."""
        for key in dict.fromkeys(_keys(call)):
            found = self._kinds.get(key)
            if found is None:
                if len(self._kinds) >= _MOST_KEYS:
                    # Callers choose names: whoever floods us with them gets the answer for all tools.
                    continue
                found = self._kinds[key] = Durations()
            found.add(seconds)

    def of(self, call: Call) -> Durations | None:
        """What is known that resembles the call; None: too little."""
        for key in _keys(call):
            found = self._kinds.get(key)
            if found is not None and len(found) >= _ENOUGH:
                return found
        return None


def _keys(call: Call) -> list[tuple[str, str]]:
    return [(call.tool, call.argument_class), (call.tool, ""), _GLOBAL]
