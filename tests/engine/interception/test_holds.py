"""Holds: what hints do, what policies are told, and what is done with what they decide."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from engine.context import Context
from engine.interception.holds import Holds, Running
from engine.interception.policy import Call, Decision, Held, Load
from engine.kv.blocks import BlockPool
from engine.kv.slots import SlotPool
from engine.kv.swap import SimulatedCopier, Swapper
from engine.kv.tiers import Tiers
from engine.messages import ToolEvent, ToolOutcome, ToolState

SIZE, BLOCKS = 4, 16
IDLE = Running(0, 0, 0.0)


class Told:
    """Decides what it is told to and remembers what it was asked."""

    name = "told"
    keeps_arrival = True
    stalls = False

    def __init__(self) -> None:
        self.next: list[Decision] = []
        self.held: list[Held] = []
        self.load: Load | None = None
        self.observed: list[tuple[Call, float]] = []

    def decide(self, held: Sequence[Held], load: Load) -> list[Decision]:
        self.held, self.load = list(held), load
        decisions, self.next = self.next, []
        return decisions

    def moves_preempted(self, tokens: int, load: Load) -> bool:
        return False

    def observe(self, call: Call, seconds: float) -> None:
        self.observed.append((call, seconds))


class Setting:
    """Two contexts of 18 tokens in 5 blocks each; moving a block takes 10 ms, so 2 leave in an idle step of 20 ms."""

    def __init__(self) -> None:
        self.now = 100.0
        self.pool = BlockPool(BLOCKS, SIZE, SlotPool(8))
        swapper = Swapper(self.pool.host, SimulatedCopier(), BLOCKS, 10**7, gbps=1.0, clock=lambda: self.now)
        self.policy = Told()
        self.holds = Holds(Tiers(self.pool, swapper), self.policy, lambda: self.now)
        self.contexts = [self.context(id) for id in (1, 2)]

    def context(self, id: int) -> Context:
        context = Context(id, self.pool, "foreground", arrival=id)
        context.append([id, *range(17)])
        context.reserve(18)
        context.advance(18)
        context.seal()
        context.wants_prefill = False
        return context

    def hold(self, call: Call | None = None) -> None:
        for context in self.contexts:
            self.holds.begin(context, call or Call("search"), f"call {context.id}")
            context.held = True

    def hear(self, state: ToolState, expected_s: float | None = None, call: str = "call 1") -> tuple[ToolOutcome, int]:
        return self.holds.hear(1, ToolEvent(1, call, state, expected_s))

    def step(self, *decisions: Decision, starved: int = 0) -> None:
        self.policy.next = list(decisions)
        self.holds.before_step(IDLE, starved)

    def described(self) -> Held:
        self.step()
        return next(one for one in self.policy.held if one.id == 1)


def test_hints_about_nothing_that_is_held_are_not_found() -> None:
    at = Setting()
    assert at.hear("started") == ("rejected", 404)
    at.hold()
    assert at.hear("started", call="another") == ("rejected", 404)
    at.holds.end(at.contexts[0], returned=True)
    assert at.hear("finished") == ("rejected", 404)


def test_the_time_of_a_call_begins_once_when_it_starts() -> None:
    at = Setting()
    at.hold()
    at.now += 3
    assert at.hear("started") == ("accepted", 200)
    at.now += 2
    assert at.hear("started") == ("accepted", 200)
    assert at.described().elapsed_s == pytest.approx(2.0)
    at.holds.end(at.contexts[0], returned=True)
    assert at.policy.observed == [(Call("search"), 2.0)]


def test_progress_says_how_long_it_will_still_last() -> None:
    at = Setting()
    at.hold(Call("search", expected_s=5.0))
    at.now += 4
    assert at.hear("progress", 10.0) == ("accepted", 200)
    assert at.described().call.expected_s == pytest.approx(14.0)
    assert at.hear("progress") == ("accepted", 200)
    assert at.described().call.expected_s == pytest.approx(14.0)


@pytest.mark.parametrize(
    ("claimed", "believed"), [(1e9, 3600.0), (math.inf, 3600.0), (-5.0, 0.0), (-math.inf, 0.0), (math.nan, 0.0)]
)
def test_what_cannot_be_is_clipped(claimed: float, believed: float) -> None:
    at = Setting()
    at.hold(Call("search", expected_s=claimed))
    assert at.described().call.expected_s == believed
    assert at.hear("progress", claimed) == ("clipped", 200)
    assert at.described().call.expected_s == believed


@pytest.mark.parametrize("state", ["finished", "failed", "cancelled"])
def test_an_end_is_heard_once_and_nothing_after_it(state: ToolState) -> None:
    at = Setting()
    at.hold()
    at.now += 2
    assert at.hear(state) == ("accepted", 200)
    at.now += 1
    assert at.hear(state) == ("accepted", 200)
    assert at.hear("progress", 1.0) == ("rejected", 409)
    assert at.hear("started") == ("rejected", 409)
    at.holds.end(at.contexts[0], returned=True)
    # What was cancelled says nothing about how long calls last.
    assert at.policy.observed == ([] if state == "cancelled" else [(Call("search"), 2.0)])


def test_a_hold_that_ends_without_a_result_teaches_nothing() -> None:
    at = Setting()
    at.hold()
    at.now += 2
    at.holds.end(at.contexts[0], returned=False)
    at.holds.end(at.contexts[0], returned=True)
    assert at.policy.observed == []


def test_the_policy_sees_where_kv_is() -> None:
    at = Setting()
    at.hold()
    one = at.described()
    assert (one.context_tokens, one.device_tokens, one.host_tokens, one.moving_tokens) == (18, 18, 0, 0)
    at.step(Decision(1, drop_tokens=4, swap_tokens=8))
    one = at.described()
    assert (one.device_tokens, one.host_tokens, one.moving_tokens) == (8, 0, 8)
    at.now += 0.02
    one = at.described()
    assert (one.device_tokens, one.host_tokens, one.moving_tokens) == (8, 8, 0)
    assert at.holds.device_blocks == 2 + 5


def test_the_policy_sees_the_load() -> None:
    at = Setting()
    at.hold()
    at.holds.before_step(Running(1000, 7, 0.05), 3)
    assert at.policy.load == Load(
        running_tokens=1000,
        query_tokens=7,
        waiting_tokens=3 * SIZE,
        free_tokens=6 * SIZE,
        pool_tokens=BLOCKS * SIZE,
        host_free_tokens=8 * SIZE,
        swap_out_tokens=5 * SIZE,
    )


def test_what_is_shared_is_not_the_holds_to_give_up() -> None:
    at = Setting()
    child = at.contexts[0].fork(3, "foreground")
    at.hold()
    assert at.described().device_tokens == 0
    at.step(Decision(1, drop_tokens=18))
    assert at.contexts[0].kv_length == child.kv_length == 18


def test_the_head_is_dropped_and_the_tail_moved_in_whole_blocks() -> None:
    at = Setting()
    at.hold()
    at.step(Decision(1, drop_tokens=3, swap_tokens=5))
    parked = at.contexts[0].parked
    assert [index for index, _ in parked.items()] == [1, 2, 3, 4]
    assert [index for index, place in parked.items() if place.move is not None] == [3, 4]


def test_an_ended_call_has_its_kv_brought_back_before_the_result_is_there() -> None:
    at = Setting()
    at.hold()
    at.step(Decision(1, swap_tokens=8))
    at.now += 0.02
    at.step()
    at.hear("finished")
    at.step(Decision(1, drop_tokens=18))
    assert at.holds.tiers.moving("in") == 2
    at.now += 0.02
    at.step()
    assert at.contexts[0].parked.slots == []
    at.contexts[0].held = False
    at.contexts[0].absorb()
    assert at.contexts[0].kv_length == 18


def test_there_is_something_to_do_as_long_as_kv_of_an_ended_call_can_be_brought_back() -> None:
    at = Setting()
    at.hold()
    at.step(Decision(1, swap_tokens=18))
    at.now += 0.05
    at.step()
    assert at.holds.wait_seconds() == math.inf
    at.hear("finished")
    others = at.pool.allocate(at.pool.free_count)
    assert at.holds.wait_seconds() == math.inf
    at.pool.release(others)
    for left in (3, 1, 0):
        assert at.holds.wait_seconds() == 0.0
        at.step()
        assert len(at.contexts[0].parked.absent) == left
        at.now += at.holds.wait_seconds()
    at.step()
    assert at.contexts[0].parked.slots == []
    assert at.holds.wait_seconds() == math.inf


def test_moves_keep_to_what_the_link_carries_during_a_step() -> None:
    at = Setting()
    at.hold()
    assert at.holds.restorable(at.contexts[0]) == 0
    at.step(Decision(1, swap_tokens=18))
    at.now += 0.05
    at.step()
    context = at.contexts[0]
    assert at.holds.restorable(context) == 2
    assert at.holds.restore(context, 5) == 2
    assert at.holds.restorable(context) == 0
    # The last ones first: the head can be computed meanwhile.
    assert context.parked.absent == [0, 1, 2]


def test_memory_that_is_needed_is_taken_from_the_longest_held_whatever_the_policy_says() -> None:
    at = Setting()
    at.holds.begin(at.contexts[1], Call("search"))
    at.now += 1
    at.holds.begin(at.contexts[0], Call("search"))
    for context in at.contexts:
        context.held = True
    assert at.holds.reclaimable() == 10
    discards = at.holds.reclaim(7)
    assert [(discard.context.id, discard.tokens) for discard in discards] == [(2, 18), (1, 8)]
    assert at.pool.free_count == 6 + 7
    assert at.contexts[0].kv_end == 18


def test_what_is_shared_is_taken_last() -> None:
    at = Setting()
    child = at.contexts[0].fork(3, "foreground")
    at.hold()
    child.held = True
    at.holds.begin(child, Call("search"))
    at.holds.reclaim(10)
    assert at.pool.free_count == BLOCKS


def test_waits_in_the_queue_are_averaged() -> None:
    at = Setting()
    at.hold()
    for _ in range(100):
        at.holds.waited(2.0)
    at.step()
    assert at.policy.load is not None
    assert at.policy.load.queue_delay_s == pytest.approx(2.0, rel=0.01)
