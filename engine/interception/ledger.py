"""Where the memory of a KV pool went: token-seconds by cause, in sum memory times time (InferCept, figure 3)."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of the pool at one moment, by what holds them: work that runs, work that computes what was dropped, work
    that waits for KV to be moved back, held contexts, idle ones, the prefix cache, nothing."""

    running: int = 0
    recomputing: int = 0
    restoring: int = 0
    held: int = 0
    idle: int = 0
    cached: int = 0
    free: int = 0


@dataclass(slots=True)
class Ledger:
    """Token-seconds since the start. Waste is memory held for a call that is not over, by contexts that are computed
    again, by others that wait for that, and by contexts that wait for a move."""

    useful: float = 0.0
    held: float = 0.0
    recompute_own: float = 0.0
    recompute_bystanders: float = 0.0
    swap_stall: float = 0.0
    idle: float = 0.0
    cached: float = 0.0
    free: float = 0.0

    def add(self, seconds: float, usage: Usage, *, recompute_s: float = 0.0, stalled: bool = False) -> None:
        """`seconds` in which the pool was used like that; for `recompute_s` of them the step went on only because of
        what it computed again. `stalled`: nothing ran, because a move had to end first."""
        recompute_s = min(recompute_s, seconds)
        if stalled:
            self.swap_stall += (usage.running + usage.recomputing) * seconds
        else:
            self.useful += usage.running * (seconds - recompute_s)
            self.recompute_bystanders += usage.running * recompute_s
            self.recompute_own += usage.recomputing * seconds
        self.swap_stall += usage.restoring * seconds
        self.held += usage.held * seconds
        self.idle += usage.idle * seconds
        self.cached += usage.cached * seconds
        self.free += usage.free * seconds

    @property
    def total(self) -> float:
        """Memory times time."""
        return math.fsum(asdict(self).values())

    @property
    def wasted(self) -> float:
        return self.held + self.recompute_own + self.recompute_bystanders + self.swap_stall
