"""Keeps the ledger of one model, step by step."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from engine.context import Context
from engine.interception.holds import Holds
from engine.interception.ledger import Ledger, Usage
from engine.scheduler import Work
from engine.step_time import StepTime


class Accounts:
    """Time is booked to what held the pool when it began to pass."""

    def __init__(self, holds: Holds, model: int, step_time: StepTime, now: float) -> None:
        self.ledger = Ledger()
        self._holds = holds
        self._pool = holds.tiers.pool
        self._model = model
        self._step_time = step_time
        self._usage = Usage(free=self._pool.count * self._pool.block_size)
        self._recompute_s = 0.0
        self._stalled = False
        self._at = now

    def book(self, now: float) -> None:
        """Books the time until `now`."""
        seconds, self._at = max(now - self._at, 0.0), now
        self.ledger.add(seconds, self._usage, recompute_s=self._recompute_s, stalled=self._stalled)

    def begin_step(self, now: float, active: Sequence[Context], work: Sequence[Work]) -> None:
        """A step begins that does `work`, of the contexts that have any to do."""
        self.book(now)
        again = {w.context: recomputed(w) for w in work if w.start < w.context.computed}
        tokens = sum(again.values())
        joins = sum(w.tokens for w in work) > tokens
        self._recompute_s = self._step_time.extra(self._model, tokens, joins=joins) if tokens else 0.0
        self._look(active, again.keys())

    def end_step(self, now: float, active: Sequence[Context]) -> None:
        """It is over."""
        self.book(now)
        self._recompute_s = 0.0
        # Else the next step follows at once, and looks.
        if not active:
            self._look(active, ())

    def _look(self, active: Sequence[Context], recomputing: Collection[Context]) -> None:
        pool, size = self._pool, self._pool.block_size
        self._stalled = self._holds.must_wait
        used = pool.count - pool.free_count
        held = min(self._holds.device_blocks, used)
        blocks = {"running": 0, "recomputing": 0, "restoring": 0}
        left = used - held
        for context in active:
            kind = "recomputing" if context in recomputing else "restoring" if context.is_restoring else "running"
            count = min(len(context.device_blocks), left)
            blocks[kind] += count
            left -= count
        self._usage = Usage(
            running=blocks["running"] * size,
            recomputing=blocks["recomputing"] * size,
            restoring=blocks["restoring"] * size,
            held=held * size,
            idle=left * size,
            cached=pool.cached_count * size,
            free=(pool.free_count - pool.cached_count) * size,
        )


def recomputed(work: Work) -> int:
    """How many of its tokens have been computed before."""
    return max(min(work.start + work.count, work.context.computed) - work.start, 0)
