"""Held contexts: what their policy decides is done with their KV, before each step.

A hold is soft. What a policy keeps is given up all the same when work that runs needs the memory and the policy, asked
for it, does not give enough.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from engine.context import Context
from engine.interception.policy import Call, Decision, Held, Load, Policy
from engine.kv.tiers import Tiers
from engine.messages import ToolEvent, ToolOutcome
from engine.scheduler import Discard

_IDLE_STEP_S = 0.02
_RECENT = 0.9
_LONGEST_ESTIMATE_S = 3600.0
_PRESSURE = "memory pressure"
_HOST_SHARE = 0.125
"""Of the host that idle contexts leave to others."""


@dataclass(slots=True)
class _Hold:
    context: Context
    call: Call
    since: float
    call_id: str = ""
    started: bool = False
    ended: bool = False
    layout: tuple[int, int, int] | None = None
    """Tokens on the device, on the host, on the move; as looked up when the context had KV up to `layout_of`."""
    layout_of: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class Moved:
    """KV of `tokens` tokens of a context has left the device or has come back."""

    context: Context
    to_host: bool
    tokens: int


@dataclass(frozen=True, slots=True)
class Running:
    """What a step without any prefill would compute, of one model."""

    tokens: int
    queries: int
    seconds: float


class Holds:
    """The holds of one model."""

    def __init__(self, tiers: Tiers, policy: Policy, clock: Callable[[], float]) -> None:
        self.tiers = tiers
        self.policy = policy
        self._clock = clock
        self._holds: dict[int, _Hold] = {}
        self._running = Running(0, 0, 0.0)
        self._queue_delay_s = 0.0
        self._resting: dict[int, Context] = {}
        """Idle contexts with KV on the host, the longest idle first."""

    @property
    def is_busy(self) -> bool:
        """Whether there is anything to decide, or a move to end."""
        return bool(self._holds) or self.tiers.is_moving

    @property
    def count(self) -> int:
        """How many contexts are held."""
        return len(self._holds)

    @property
    def device_blocks(self) -> int:
        """How many blocks of the device are kept for holds, without those that are shared."""
        size = self.tiers.pool.block_size
        tokens = sum(self._layout(hold)[0] for hold in self._holds.values())
        return -(-tokens // size) + self.tiers.moving("out")

    @property
    def must_wait(self) -> bool:
        """Whether no step may begin before moves have ended."""
        return self.policy.stalls and self.tiers.is_moving

    @property
    def can_restore(self) -> bool:
        """Whether KV of a context whose call has ended can be brought back now."""
        ended = [hold.context for hold in self._holds.values() if hold.ended]
        return any(self.restorable(context) > 0 for context in ended) and self.tiers.pool.free_count > 0

    def wait_seconds(self) -> float:
        """Seconds until a step has something to do for holds, or may find a move ended."""
        return 0.0 if self.can_restore else self.tiers.wait_seconds()

    def begin(self, context: Context, call: Call, call_id: str = "") -> None:
        """A context is held from now on."""
        if call.expected_s is not None:
            call = replace(call, expected_s=_believable(call.expected_s))
        self._holds[context.id] = _Hold(context, call, self._clock(), call_id)

    def end(self, context: Context, *, returned: bool) -> None:
        """The hold is over, or the context closed; `returned`: because what it waited for has come."""
        self._resting.pop(context.id, None)
        hold = self._holds.pop(context.id, None)
        if hold is not None and returned and not hold.ended:
            self.policy.observe(hold.call, self._clock() - hold.since)

    def hear(self, context_id: int, event: ToolEvent) -> tuple[ToolOutcome, int]:
        """A hint about a call; returns what became of it, and a code as in HTTP."""
        hold = self._holds.get(context_id)
        if hold is None or hold.call_id != event.call:
            return "rejected", 404
        if event.state in ("finished", "failed", "cancelled"):
            self._finish(hold, returned=event.state != "cancelled")
            return "accepted", 200
        if hold.ended:
            return "rejected", 409
        if event.state == "started" and not hold.started:
            hold.started, hold.since = True, self._clock()
        if event.expected_s is None:
            return "accepted", 200
        expected = _believable(event.expected_s)
        hold.call = replace(hold.call, expected_s=self._clock() - hold.since + expected)
        return ("accepted" if expected == event.expected_s else "clipped"), 200

    def _finish(self, hold: _Hold, *, returned: bool) -> None:
        if returned and not hold.ended:
            self.policy.observe(hold.call, self._clock() - hold.since)
        hold.ended = True

    def waited(self, seconds: float) -> None:
        """A context that came back without its KV has waited so long until it was computed again."""
        self._queue_delay_s = _RECENT * self._queue_delay_s + (1 - _RECENT) * seconds

    def before_step(self, running: Running, starved_blocks: int) -> tuple[list[Discard], list[Moved]]:
        """Ends moves that are over, brings back what will be wanted soon, and obeys the policy. `starved_blocks` are
        those that work needs which did not get them in the last step."""
        self._running = running
        self._make_host_room(int(_HOST_SHARE * self.tiers.pool.host.count))
        size = self.tiers.pool.block_size
        moved = [Moved(c, direction == "out", n * size) for c, direction, n in self.tiers.poll()]
        for one in moved:
            self._forget_layout(one.context)
        for hold in self._holds.values():
            if hold.ended:
                self.restore(hold.context, self.tiers.pool.free_count)
        return self._obey(starved_blocks), moved

    def reclaimable(self) -> int:
        """How many blocks of the device holds could give up."""
        return len({block for hold in self._still() for block in hold.context.device_blocks})

    def reclaim(self, blocks: int) -> list[Discard]:
        """Gives up at least so many blocks, if there are: as the policy says, then the longest held first; what is
        shared comes last."""
        pool = self.tiers.pool
        target = pool.free_count + blocks
        discards = self._obey(target)
        longest = sorted(self._still(), key=lambda hold: hold.since)
        for hold in longest:
            missing = target - pool.free_count - self.leaving()
            if missing <= 0:
                return discards
            discards += self._drop(hold.context, hold.context.private_blocks[:missing], _PRESSURE)
        for hold in longest:
            if pool.free_count + self.leaving() >= target:
                break
            if hold.context.device_blocks:
                discards.append(Discard(hold.context, hold.context.drop_device_kv(), _PRESSURE))
                hold.layout = None
        return discards

    def leaving(self) -> int:
        """See `Reserve`."""
        return self.tiers.moving("out")

    def preempt(self, context: Context) -> bool:
        """See `Reserve`."""
        blocks = context.private_blocks
        if not blocks or not self.tiers.can_start:
            return False
        if not self.policy.moves_preempted(len(blocks) * self.tiers.pool.block_size, self._load(0)):
            return False
        self._resting.pop(context.id, None)
        kept_free = 0 if context.wants_kv else int(_HOST_SHARE * self.tiers.pool.host.count)
        self._make_host_room(len(blocks) + kept_free)
        if self.tiers.host_free < len(blocks) + kept_free:
            return False
        if not context.wants_kv:
            self._resting[context.id] = context
        return self.tiers.move_out(context, blocks) > 0

    def _make_host_room(self, blocks: int) -> None:
        """Drops what idle contexts have on the host, as far as so many free blocks need it."""
        for context in list(self._resting.values()):
            # Slots of a move are free only when it has ended.
            if self.tiers.host_free >= blocks or context.is_leaving:
                return
            del self._resting[context.id]
            if not context.wants_kv and not context.held:
                context.parked.drop_from(0)

    def check_integrity(self, contexts: Iterable[Context]) -> None:
        """Asserts that the holds are those of the contexts of this model that are held."""
        held = {context.id: context for context in contexts if context.held}
        assert {id: hold.context for id, hold in self._holds.items()} == held, "holds differ from held contexts"

    def _still(self) -> list[_Hold]:
        """Holds of contexts that compute nothing meanwhile."""
        return [hold for hold in self._holds.values() if not hold.context.pending]

    def restore(self, context: Context, blocks: int) -> int:
        """Begins to bring back up to so many blocks of a context, the last ones first, as far as the link carries them
        during a step; returns how many."""
        absent = context.parked.absent
        wanted = min(blocks, self.restorable(context))
        return self.tiers.move_in(context, absent[len(absent) - wanted :]) if wanted > 0 else 0

    def restorable(self, context: Context) -> int:
        """See `Reserve`."""
        return min(len(context.parked.absent), self._budget())

    def _budget(self) -> int:
        """N_i, in blocks: what the link carries during a step beside what is under way (InferCept, section 4.1)."""
        if not self.tiers.can_start:
            return 0
        if self.policy.stalls:
            return self.tiers.pool.count
        seconds = max(self._running.seconds, _IDLE_STEP_S)
        carried = seconds / self.tiers.seconds_per_block
        return max(math.ceil(carried) - self.tiers.moving("in") - self.tiers.moving("out"), 0)

    def _obey(self, wanted_blocks: int) -> list[Discard]:
        if not self._holds:
            return []
        decisions = self.policy.decide(self._held(), self._load(wanted_blocks))
        discards: list[Discard] = []
        for decision in decisions:
            discards += self._apply(decision)
        return discards

    def _apply(self, decision: Decision) -> list[Discard]:
        hold = self._holds.get(decision.context)
        if hold is None or hold.ended or hold.context.pending:
            return []
        size, private = self.tiers.pool.block_size, hold.context.private_blocks
        dropped = -(-decision.drop_tokens // size)
        discards = self._drop(hold.context, private[:dropped], "policy")
        moved = min(-(-decision.swap_tokens // size), len(private) - len(private[:dropped]))
        if moved > 0:
            self.tiers.move_out(hold.context, private[len(private) - moved :])
            hold.layout = None
        return discards

    def _drop(self, context: Context, indices: Sequence[int], reason: str) -> list[Discard]:
        if not indices:
            return []
        before = context.kv_end
        context.drop_blocks(indices)
        self._forget_layout(context)
        tokens = min(len(indices) * self.tiers.pool.block_size, before)
        return [Discard(context, tokens, reason)]

    def _held(self) -> list[Held]:
        now = self._clock()
        return [self._describe(hold, now) for hold in self._still() if not hold.ended]

    def _describe(self, hold: _Hold, now: float) -> Held:
        context = hold.context
        device, host, moving = self._layout(hold)
        return Held(
            id=context.id,
            arrival=context.arrival,
            call=hold.call,
            elapsed_s=now - hold.since,
            context_tokens=len(context.tokens),
            device_tokens=device,
            host_tokens=host,
            moving_tokens=moving,
        )

    def _layout(self, hold: _Hold) -> tuple[int, int, int]:
        looked_up_of = (hold.context.kv_length, hold.context.kv_end)
        if hold.layout is None or hold.layout_of != looked_up_of:
            hold.layout, hold.layout_of = self._look_up(hold.context), looked_up_of
        return hold.layout

    def _look_up(self, context: Context) -> tuple[int, int, int]:
        size = self.tiers.pool.block_size
        moving = sum(1 for _, place in context.parked.items() if place.move is not None) if context.parked else 0
        device = min(len(context.private_blocks) * size, context.kv_end)
        return device, len(context.parked.slots) * size, moving * size

    def _forget_layout(self, context: Context) -> None:
        hold = self._holds.get(context.id)
        if hold is not None:
            hold.layout = None

    def _load(self, wanted_blocks: int) -> Load:
        pool, size = self.tiers.pool, self.tiers.pool.block_size
        return Load(
            running_tokens=self._running.tokens,
            query_tokens=self._running.queries,
            waiting_tokens=wanted_blocks * size,
            free_tokens=pool.free_count * size,
            pool_tokens=pool.count * size,
            host_free_tokens=self.tiers.host_free * size,
            swap_out_tokens=self._budget() * size,
            queue_delay_s=self._queue_delay_s,
            leaving_tokens=self.leaving() * size,
        )


def _believable(seconds: float) -> float:
    # In this order what is not a number counts as nothing.
    return min(max(0.0, seconds), _LONGEST_ESTIMATE_S)
