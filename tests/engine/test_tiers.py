"""Moves of a context's blocks to the host and back, taken back at any moment: nothing stays held."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from engine.context import Context
from engine.kv.blocks import BlockPool
from engine.kv.slots import SlotPool
from engine.kv.swap import Direction, SimulatedCopier, Swapper, Ticket
from engine.kv.tiers import Tiers

SIZE, BLOCKS, SLOTS = 4, 8, 6
BLOCK_S = 0.001


class FailingCopier(SimulatedCopier):
    """Copies end at once; those in a failing direction with an error."""

    failing = ""

    def seconds(self, ticket: Ticket) -> float | None:
        if ticket.direction == self.failing:
            raise OSError("the link is down")
        return 0.0


class Setting:
    """A context of 18 tokens in 5 blocks; moving a block takes a millisecond."""

    def __init__(self, slots: int = SLOTS) -> None:
        self.now = 100.0
        self.copier = FailingCopier()
        self.pool = BlockPool(BLOCKS, SIZE, SlotPool(slots))
        swapper = Swapper(self.pool.host, self.copier, BLOCKS, 10**6, gbps=1.0, clock=lambda: self.now)
        self.tiers = Tiers(self.pool, swapper)
        self.context = Context(1, self.pool, "foreground")
        self.context.append(list(range(18)))
        self.context.reserve(18)
        self.context.advance(18)
        self.context.seal()
        self.context.held = True

    def pass_time(self, blocks: float) -> list[tuple[Direction, int]]:
        self.now += blocks * BLOCK_S
        found = [(direction, count) for context, direction, count in self.tiers.poll()]
        self.check()
        return found

    def check(self) -> None:
        context = self.context
        self.pool.check_integrity([context.device_blocks, *self.tiers.held_blocks()])
        self.pool.host.check_integrity([context.parked.slots, *self.tiers.held_slots()])
        context.check_integrity()

    def used(self) -> tuple[int, int]:
        """Blocks and slots that are not free; cached ones are."""
        return BLOCKS - self.pool.free_count, self.pool.host.count - self.pool.host.free_count


def test_the_tail_leaves_after_its_time_on_the_link_and_comes_back_in_place() -> None:
    at = Setting()
    before = list(at.context.blocks)
    assert at.tiers.move_out(at.context, [3, 4]) == 2
    assert (at.context.kv_length, at.context.kv_end) == (12, 18)
    assert at.tiers.wait_seconds() == pytest.approx(2 * BLOCK_S)
    assert at.pass_time(1.9) == []
    assert at.used() == (5, 2)
    assert at.pass_time(0.1) == [("out", 2)]
    assert at.used() == (3, 2)
    assert at.context.parked.absent == [3, 4]
    assert at.tiers.wait_seconds() == math.inf
    assert at.tiers.move_in(at.context, [3, 4]) == 2
    assert at.pass_time(2) == [("in", 2)]
    assert at.context.kv_length == 12
    at.context.held = False
    at.context.absorb()
    assert (at.context.kv_length, bool(at.context.parked)) == (18, False)
    assert at.context.blocks[:3] == before[:3]
    assert at.used() == (5, 0)


def test_only_as_much_leaves_as_the_host_has_room_for_from_the_tail_on() -> None:
    at = Setting(slots=1)
    assert at.tiers.move_out(at.context, [2, 3, 4]) == 1
    at.pass_time(1)
    assert at.context.parked.absent == [4]
    assert at.tiers.move_out(at.context, [3]) == 0
    assert at.context.kv_length == 16


def test_only_as_much_comes_back_as_the_device_has_room_for() -> None:
    at = Setting()
    at.tiers.move_out(at.context, [2, 3, 4])
    at.pass_time(3)
    others = at.pool.allocate(at.pool.free_count - 1)
    assert at.tiers.move_in(at.context, [2, 3, 4]) == 1
    at.now += 1
    at.tiers.poll()
    assert at.context.parked.absent == [2, 3]
    at.pool.release(others)
    at.check()


def test_without_a_host_nothing_moves() -> None:
    at = Setting()
    alone = Tiers(at.pool)
    assert alone.move_out(at.context, [4]) == 0
    assert alone.move_in(at.context, [4]) == 0
    assert (alone.host_free, alone.is_moving, alone.poll()) == (0, False, [])
    assert alone.seconds_per_block == alone.wait_seconds() == math.inf


def test_the_time_of_a_block_is_the_links_first_and_then_what_moves_took() -> None:
    at = Setting()
    assert at.tiers.seconds_per_block == pytest.approx(BLOCK_S)
    at.tiers.move_out(at.context, [3, 4])
    at.pass_time(2)
    assert at.tiers.seconds_per_block == pytest.approx(BLOCK_S)


def leaving(at: Setting) -> None:
    at.tiers.move_out(at.context, [2, 3])
    at.pass_time(1)


def away(at: Setting) -> None:
    at.tiers.move_out(at.context, [2, 3])
    at.pass_time(2)


def coming(at: Setting) -> None:
    away(at)
    at.tiers.move_in(at.context, [2, 3])
    at.pass_time(1)


def coming_behind_a_gap(at: Setting) -> None:
    coming(at)
    at.context.drop_blocks([0, 1])


def both_ways(at: Setting) -> None:
    away(at)
    at.tiers.move_in(at.context, [3])
    at.tiers.move_out(at.context, [4])
    at.pass_time(0.5)


def resumed(at: Setting) -> None:
    coming(at)
    at.context.held = False
    at.context.absorb()


def back(at: Setting) -> None:
    coming(at)
    at.pass_time(1)


STATES: list[Callable[[Setting], None]] = [leaving, away, coming, coming_behind_a_gap, both_ways, resumed, back]


def close(at: Setting) -> None:
    at.context.drop_kv()


def fail(at: Setting) -> None:
    at.context.drop_kv(spoiled=True)


def truncate_inside(at: Setting) -> None:
    at.context.truncate(14)


def truncate_before(at: Setting) -> None:
    at.context.truncate(6)


def evict(at: Setting) -> None:
    at.context.drop_device_kv()


def drop(at: Setting) -> None:
    at.context.drop_blocks(at.context.private_blocks)


def resume(at: Setting) -> None:
    at.context.held = False
    at.context.absorb()


@pytest.mark.parametrize("abort", [close, fail, truncate_inside, truncate_before, evict, drop, resume])
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("broken", ["", "out", "in"], ids=["", "outward fails", "inward fails"])
def test_whatever_is_taken_back_at_any_moment_of_a_move_nothing_stays_held(
    state: Callable[[Setting], None], abort: Callable[[Setting], None], broken: str
) -> None:
    at = Setting()
    state(at)
    at.copier.failing = broken
    abort(at)
    at.check()
    at.pass_time(0.5)
    at.pass_time(10)
    assert not at.tiers.is_moving
    assert at.context.kv_end <= len(at.context.tokens)
    if abort in (close, fail):
        assert at.used() == (0, 0)
    at.context.drop_kv()
    at.check()
    assert at.used() == (0, 0)


@pytest.mark.parametrize("state", STATES)
def test_closing_ends_all_moves(state: Callable[[Setting], None]) -> None:
    at = Setting()
    state(at)
    at.tiers.close()
    assert not at.tiers.is_moving
    at.check()
    at.context.drop_kv()
    assert at.used() == (0, 0)


def test_what_cannot_be_copied_out_stays() -> None:
    at = Setting()
    at.copier.failing = "out"
    at.tiers.move_out(at.context, [3, 4])
    assert at.pass_time(2) == []
    assert at.used() == (5, 0)
    at.context.held = False
    at.context.absorb()
    assert at.context.kv_length == 18


def test_what_cannot_be_read_back_is_computed_again() -> None:
    at = Setting()
    away(at)
    at.copier.failing = "in"
    at.tiers.move_in(at.context, [2, 3])
    assert at.pass_time(2) == []
    at.context.held = False
    at.context.absorb()
    assert (at.context.kv_length, at.context.parked.first) == (8, 4)
    assert at.used() == (3, 0)
    # Computing the gap closes it.
    assert at.context.pending == 8
    at.context.reserve(8)
    assert at.context.advance(16) == 8
    assert at.context.kv_length == 18


def test_a_block_that_was_closed_and_reused_is_not_touched_by_the_end_of_its_move() -> None:
    at = Setting()
    leaving(at)
    at.context.drop_kv()
    # The move still reads two blocks.
    assert at.used() == (2, 2)
    at.pass_time(1)
    assert at.used() == (0, 0)


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("moved", [[1], [2], [1, 2, 3], [3]])
@pytest.mark.parametrize("taken", range(1, BLOCKS + 1))
def test_what_was_closed_on_its_way_is_evicted_no_later_than_what_is_before_it(
    moved: list[int], taken: int, ended: bool
) -> None:
    at = Setting()
    at.tiers.move_out(at.context, moved)
    at.context.drop_kv()
    at.pass_time(10 if ended else 0.5)
    others = at.pool.allocate(min(taken, at.pool.free_count))
    at.pool.check_integrity([others, *at.tiers.held_blocks()])
    at.tiers.close()
    at.pool.release(others)
    at.check()
    assert at.used() == (0, 0)
