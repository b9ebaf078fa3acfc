"""The engine's own core and scheduler on a clock that stands still while they think.

Discrete events: requests arrive, steps take as long as the setting says, tools return; the host takes no time. So what
is measured is what a policy does, for half an hour of arrivals in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict

from bench.interception.figures import Memory, Outcome, memory_of
from bench.interception.host import Host
from bench.interception.setting import Setting
from bench.interception.timed_model import TOKEN, KnownStepTime, TimedModel, VirtualClock
from bench.interception.workload import Request
from engine.admission import Admission
from engine.core import EngineCore
from engine.interception.policy import Policy
from engine.scheduler import Scheduler

_UNLIMITED = 1 << 60
_IDLE_TICK_S = 1e-3
_MOST_IDLE_TICKS = 1_000_000


class SimulationStuck(Exception):
    """Work is left that nothing will ever do: a fault of the engine or of a policy."""


class TooLong(ValueError):
    """A request that no pool of this size can hold."""


class Simulation:
    """One policy on one workload, in steps of at most `step_tokens`."""

    def __init__(
        self,
        setting: Setting,
        policy: Policy,
        requests: Sequence[Request],
        *,
        step_tokens: int,
        prefix_cache: bool = False,
        mixes: bool = True,
    ) -> None:
        """See `TimedModel`. Raises `TooLong`."""
        self.clock = VirtualClock()
        self.model = TimedModel(setting, self.clock, policy, prefix_cache=prefix_cache, mixes=mixes)
        longest = max((request.length for request in requests), default=0)
        if longest > self.model.max_context:
            raise TooLong(f"a request of {longest} tokens; the KV pool has {self.model.max_context}")
        scheduler = Scheduler(step_tokens, clock=self.clock)
        scheduler.step_time = KnownStepTime(setting.timing, mixes=mixes)
        self.core = EngineCore(
            [self.model],
            scheduler,
            Admission(_UNLIMITED, _UNLIMITED, _UNLIMITED),
            speculate=False,
            clock=self.clock,
        )
        self._host = Host(requests, lambda index, turn: _text(requests[index], index, turn), self.core.apply)
        self._idle_ticks = 0

    @property
    def outcomes(self) -> list[Outcome]:
        """Of the requests, as of now."""
        return self._host.outcomes

    def run(self, until: float = math.inf) -> None:
        """Until all requests are completed, or the clock says `until`. Raises `SimulationStuck`, and `RequestFailed`
        when the engine does not do what it is told."""
        while self.clock.now < until and not self._host.is_done:
            self._host.deliver(self.clock.now)
            wait = self.core.wait_seconds()
            if wait == 0:
                self._step()
            else:
                self._wait(wait)

    def memory(self) -> Memory:
        """What became of the pool's memory so far."""
        return memory_of(asdict(self.core.ledger()), self.core.counters.recomputed_tokens)

    def _step(self) -> None:
        before = self.core.counters.steps
        items = self.core.step()
        for item in items:
            self._host.take(item, self.clock.now)
        if items or self.core.counters.steps > before:
            self._idle_ticks = 0
            return
        # Work waits for memory that a move or a tool will free: an engine looks again and again.
        self._idle_ticks += 1
        if self._idle_ticks > _MOST_IDLE_TICKS:
            raise SimulationStuck(f"nothing moves since {self._idle_ticks * _IDLE_TICK_S:.0f} s")
        self._wait(_IDLE_TICK_S)

    def _wait(self, seconds: float) -> None:
        due = self._host.next_s
        wake = min(self.clock.now + seconds, math.inf if due is None else due)
        if wake == math.inf:
            raise SimulationStuck("requests are left, but neither work nor tools")
        self.clock.now = max(wake, self.clock.now)


def _text(request: Request, index: int, turn: int) -> list[int]:
    """Every context begins with a token of its own, so none shares KV with another one."""
    tokens = [TOKEN] * request.turns[turn].append
    if turn == 0:
        tokens[0] = index + 1
    return tokens
