"""Moves between tiers: nothing is lost, nothing is touched twice, and the modelled link is as fast as it says."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.kv.host_pool import HostPool
from engine.kv.host_tier import make_host_tier
from engine.kv.planes import Planes, block_bytes, in_words, planes_of
from engine.kv.slots import SlotPool
from engine.kv.staging import Staging, runs
from engine.kv.swap import Direction, Pair, SimulatedCopier, Swapper, SwapQueueFull, Ticket
from engine.kv.tensors import KvTensors
from engine.kv.thread_copier import ThreadCopier, between_memories

BLOCKS = 8


class FakeClock:
    """Stands still until it is set."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Gate:
    """What copies wait for; then they fail if there is an `error`."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.entered = threading.Event()
        self.error: Exception | None = None

    def wait(self) -> None:
        self.entered.set()
        assert self.opened.wait(60)
        if self.error is not None:
            raise self.error


@contextmanager
def gated(swapper: Swapper) -> Iterator[Gate]:
    gate, copier = Gate(), swapper._copier
    assert isinstance(copier, ThreadCopier)
    copy = copier._copy_block

    def wait_and_copy(direction: Direction, block: int, slot: int) -> None:
        gate.wait()
        copy(direction, block, slot)

    copier._copy_block = wait_and_copy
    try:
        yield gate
    finally:
        gate.opened.set()


def kv_planes(dtype: torch.dtype = torch.float32, layout: str = "layers", head_dim: int = 4) -> list[torch.Tensor]:
    """An empty pool as the transformers runner, the CUDA runner and the CPU runner have it."""
    if layout == "layers":
        return planes_of(KvTensors(3, 2, head_dim, BLOCKS, 4, dtype, torch.device("cpu")))
    if layout == "parts":
        return [torch.empty(2, 3, BLOCKS, 4, 2, head_dim, dtype=dtype).permute(2, 0, 1, 3, 4, 5)]
    return [torch.empty(BLOCKS, 2 * 3 * 2 * 4 * head_dim, dtype=dtype)]


def fill(planes: Planes, seed: int) -> None:
    """Any bits, those that are no numbers too."""
    generator = torch.Generator().manual_seed(seed)
    for plane in in_words(planes):
        values = torch.randint(0, 256, (plane.numel() * plane.element_size(),), dtype=torch.uint8, generator=generator)
        plane.copy_(values.view(plane.dtype).view(plane.shape))


def contents(planes: Planes, block: int) -> bytes:
    return b"".join(plane[block].contiguous().numpy().tobytes() for plane in in_words(planes))


@contextmanager
def swapping(planes: Planes, slots: int = BLOCKS, gbps: float | None = None) -> Iterator[tuple[Swapper, HostPool]]:
    swapper = make_host_tier(planes, slots, gbps=gbps, clock=FakeClock())
    host = swapper.slots
    assert isinstance(host, HostPool)
    try:
        yield swapper, host
    finally:
        swapper.close()


def simulated(gbps: float, slots: int = BLOCKS, most_moves: int = 64) -> tuple[Swapper, FakeClock]:
    """Blocks of 1 MB; all slots are allocated."""
    clock, pool = FakeClock(), SlotPool(slots)
    pool.allocate(slots)
    swapper = Swapper(pool, SimulatedCopier(), BLOCKS, 10**6, gbps=gbps, clock=clock, most_moves=most_moves)
    return swapper, clock


def finish(swapper: Swapper) -> list[Ticket]:
    swapper.synchronize()
    return swapper.poll()


@settings(deadline=None, max_examples=40)
@given(
    dtype=st.sampled_from([torch.bfloat16, torch.float32]),
    layout=st.sampled_from(["layers", "parts", "blocks"]),
    head_dim=st.sampled_from([3, 4]),
    blocks=st.lists(st.integers(0, BLOCKS - 1), min_size=1, unique=True),
    back=st.permutations(range(BLOCKS)),
    seed=st.integers(0, 1000),
)
def test_a_block_comes_back_bit_for_bit_wherever_it_goes(
    dtype: torch.dtype, layout: str, head_dim: int, blocks: list[int], back: list[int], seed: int
) -> None:
    planes = kv_planes(dtype, layout, head_dim)
    fill(planes, seed)
    before = [contents(planes, block) for block in range(BLOCKS)]
    with swapping(planes) as (swapper, host):
        slots = host.allocate(len(blocks))
        swapper.start_out(list(zip(blocks, slots, strict=True)))
        assert [ticket.state for ticket in finish(swapper)] == ["done"]
        assert [contents(planes, block) for block in range(BLOCKS)] == before
        fill(planes, seed + 1)
        others = [contents(planes, block) for block in range(BLOCKS)]
        targets = back[: len(blocks)]
        swapper.start_in(list(zip(targets, slots, strict=True)))
        assert [ticket.state for ticket in finish(swapper)] == ["done"]
        for block in range(BLOCKS):
            expected = before[blocks[targets.index(block)]] if block in targets else others[block]
            assert contents(planes, block) == expected


@settings(deadline=None, max_examples=30)
@given(
    dtype=st.sampled_from([torch.bfloat16, torch.float32]),
    layout=st.sampled_from(["layers", "parts", "blocks"]),
    rows=st.integers(1, 4),
    moved=st.permutations(range(BLOCKS)),
    back=st.permutations(range(BLOCKS)),
    seed=st.integers(0, 1000),
)
def test_staged_blocks_come_back_bit_for_bit(
    dtype: torch.dtype, layout: str, rows: int, moved: list[int], back: list[int], seed: int
) -> None:
    planes = kv_planes(dtype, layout)
    fill(planes, seed)
    before = [contents(planes, block) for block in range(BLOCKS)]
    host = HostPool(BLOCKS, block_bytes(planes))
    staging = Staging(planes, host.memory, rows)
    staging.copy_out(list(zip(range(BLOCKS), moved, strict=True)))
    for block, slot in enumerate(moved):
        assert host.memory[slot].numpy().tobytes() == before[block]
    fill(planes, seed + 1)
    staging.copy_in(list(zip(back, moved, strict=True)))
    assert [contents(planes, block) for block in back] == before


def test_neighbouring_slots_are_one_transfer() -> None:
    pairs = [(0, 3), (7, 4), (1, 5), (2, 1), (3, 0), (4, 1)]
    assert [(rows.start, rows.stop, slots.start, slots.stop) for rows, slots in runs(pairs)] == [
        (0, 3, 3, 6),
        (3, 4, 1, 2),
        (4, 6, 0, 2),
    ]


def test_a_block_stays_where_it_is_when_it_is_copied_out() -> None:
    planes = kv_planes()
    fill(planes, 1)
    before = contents(planes, 2)
    with swapping(planes) as (swapper, host):
        slots = host.allocate(1)
        swapper.start_out([(2, slots[0])])
        finish(swapper)
        assert contents(planes, 2) == before == host.memory[slots[0]].numpy().tobytes()


def test_a_slot_is_held_until_its_move_has_ended() -> None:
    with swapping(kv_planes()) as (swapper, host), gated(swapper) as gate:
        slots = host.allocate(2)
        ticket = swapper.start_out([(0, slots[0]), (1, slots[1])])
        gate.entered.wait(60)
        host.release(slots)
        assert swapper.poll() == []
        assert host.free_count == BLOCKS - 2
        gate.opened.set()
        assert finish(swapper) == [ticket]
        host.check_integrity([])


def test_a_copy_that_fails_is_a_ticket_that_failed_and_the_next_one_works() -> None:
    with swapping(kv_planes()) as (swapper, host), gated(swapper) as gate:
        slots = host.allocate(2)
        gate.error = OSError("the memory is gone")
        gate.opened.set()
        swapper.start_out([(0, slots[0])])
        (failed,) = finish(swapper)
        assert (failed.state, failed.error) == ("failed", "OSError: the memory is gone")
        gate.error = None
        swapper.start_out([(0, slots[0])])
        assert [ticket.state for ticket in finish(swapper)] == ["done"]
        assert (swapper.stats.failed, swapper.stats.done) == (1, 1)
        host.check_integrity([slots])


def test_a_copy_that_cannot_begin_is_a_ticket_that_failed() -> None:
    swapper, clock = simulated(gbps=1.0)

    def refuse(ticket: Ticket) -> None:
        raise RuntimeError("no staging memory")

    swapper._copier.start = refuse  # type: ignore[method-assign]
    ticket = swapper.start_in([(0, 0)])
    assert swapper.poll() == [ticket]
    assert (ticket.state, ticket.error) == ("failed", "RuntimeError: no staging memory")
    swapper.check_integrity()


def test_a_move_taken_back_before_its_copy_ends_at_once() -> None:
    with swapping(kv_planes()) as (swapper, host), gated(swapper) as gate:
        slots = host.allocate(2)
        first, second = (swapper.start_out([(i, slots[i])]) for i in range(2))
        gate.entered.wait(60)
        swapper.cancel(second)
        assert swapper.poll() == [second]
        gate.opened.set()
        assert finish(swapper) == [first]


def test_a_move_taken_back_during_its_copy_ends_after_a_block() -> None:
    planes = kv_planes()
    fill(planes, 1)
    with swapping(planes) as (swapper, host), gated(swapper) as gate:
        slots = host.allocate(3)
        host.memory.zero_()
        ticket = swapper.start_out([(i, slots[i]) for i in range(3)])
        gate.entered.wait(60)
        swapper.cancel(ticket)
        assert swapper.poll() == []
        gate.opened.set()
        assert finish(swapper) == [ticket]
        assert ticket.state == "cancelled"
        assert not host.memory[slots[1] :].any()


def test_closing_waits_for_the_copy_under_way_and_leaves_the_others_out() -> None:
    planes = kv_planes()
    with swapping(planes) as (swapper, host), gated(swapper) as gate:
        copier, slots = swapper._copier, host.allocate(3)
        close = copier.close

        def open_and_close() -> None:
            gate.opened.set()
            close()

        copier.close = open_and_close  # type: ignore[method-assign]
        host.memory.zero_()
        fill(planes, 1)
        tickets = [swapper.start_out([(i, slots[i])]) for i in range(3)]
        gate.entered.wait(60)
        swapper.close()
        assert swapper.poll() == tickets
        assert {ticket.state for ticket in tickets} == {"cancelled"}
        assert not host.memory[slots[1] :].any()
        host.check_integrity([slots])
        with pytest.raises(RuntimeError, match="closed"):
            swapper.start_out([(0, slots[0])])


def test_a_closed_swapper_does_not_wait_for_a_modelled_link() -> None:
    swapper, _ = simulated(gbps=0.001)
    ticket = swapper.start_out([(0, 0)])
    swapper.close()
    assert swapper.poll() == [ticket]
    assert swapper.wait_seconds() == math.inf


def test_the_modelled_link_carries_one_move_after_another() -> None:
    swapper, clock = simulated(gbps=0.1)  # a block in 10 ms
    out, back = swapper.start_out([(0, 0), (1, 1)]), swapper.start_in([(2, 2)])
    clock.now += 0.015
    assert swapper.poll() == []
    assert swapper.wait_seconds() == pytest.approx(0.005)
    clock.now += 0.005
    assert swapper.poll() == [out]
    late = swapper.start_out([(3, 3)])
    clock.now += 0.015
    assert swapper.poll() == [back]
    clock.now += 0.005
    assert swapper.poll() == [late]
    assert swapper.wait_seconds() == math.inf
    traffic = (swapper.stats.outward, swapper.stats.inward)
    assert [t.bytes for t in traffic] == [3 * 10**6, 10**6]
    assert [t.seconds for t in traffic] == pytest.approx([0.03, 0.01])


def test_an_idle_link_is_not_ahead_of_its_time() -> None:
    swapper, clock = simulated(gbps=0.1)
    clock.now += 5
    swapper.start_out([(0, 0)])
    assert swapper.wait_seconds() == pytest.approx(0.01)


def test_sleeping_as_long_as_told_is_enough() -> None:
    swapper, clock = simulated(gbps=0.3)
    clock.now = 1.7e9
    for i in range(BLOCKS):
        swapper.start_out([(i, i)])
        clock.now += swapper.wait_seconds()
        assert len(swapper.poll()) == 1


def test_a_move_taken_back_in_time_costs_the_link_nothing() -> None:
    swapper, clock = simulated(gbps=0.1)
    first, second, third = (swapper.start_out([(i, i)]) for i in range(3))
    swapper.cancel(second)
    assert swapper.poll() == [second]
    clock.now += 0.02
    assert swapper.poll() == [first, third]
    assert [t.state for t in (first, second, third)] == ["done", "cancelled", "done"]
    assert swapper.stats.outward.bytes == 2 * 10**6


def test_a_move_taken_back_too_late_keeps_the_link_busy() -> None:
    swapper, clock = simulated(gbps=0.1)
    first, second = swapper.start_out([(0, 0)]), swapper.start_out([(1, 1)])
    clock.now += 0.005
    swapper.cancel(first)
    assert swapper.poll() == []
    clock.now += 0.005
    assert (swapper.poll(), first.state) == ([first], "cancelled")
    clock.now += 0.01
    assert swapper.poll() == [second]


def test_throughput_is_modelled_or_real_and_says_which() -> None:
    assert simulated(gbps=1.0)[0].stats.modelled
    planes = kv_planes()
    with swapping(planes) as (swapper, host):
        swapper.start_out([(0, host.allocate(1)[0])])
        finish(swapper)
        assert not swapper.stats.modelled
        assert swapper.stats.outward.bytes == block_bytes(planes)
        assert swapper.stats.outward.seconds > 0


def test_no_more_moves_than_allowed_are_under_way() -> None:
    swapper, clock = simulated(gbps=0.1, most_moves=2)
    swapper.start_out([(0, 0)])
    swapper.start_out([(1, 1)])
    assert swapper.room == 0
    with pytest.raises(SwapQueueFull):
        swapper.start_out([(2, 2)])
    clock.now += 1
    swapper.poll()
    assert swapper.room == 2


@pytest.mark.parametrize(
    ("direction", "pairs", "message"),
    [
        ("out", [], "nothing to move"),
        ("out", [(BLOCKS, 0)], f"block {BLOCKS} is not one of"),
        ("out", [(-1, 0)], "block -1 is not one of"),
        ("in", [(0, 5)], "slot 5 is not allocated"),
        ("in", [(0, 99)], "slot 99 is not allocated"),
        ("out", [(0, 0), (1, 0)], "one target for two moves"),
        ("in", [(0, 0), (0, 1)], "one target for two moves"),
        ("out", [(3, 2)], "slot 2 is in another move"),
        ("in", [(2, 3)], "block 2 is in another move"),
        ("in", [(3, 2)], "slot 2 has not arrived yet"),
        ("out", [(4, 1)], "block 4 has not arrived yet"),
    ],
)
def test_what_cannot_move_is_refused_whole(direction: Direction, pairs: list[Pair], message: str) -> None:
    swapper, clock = simulated(gbps=0.1, slots=5)
    swapper.start_out([(2, 2)])
    swapper.start_in([(4, 4)])
    swapper.slots.release([3])
    swapper.slots.allocate(1)
    start = swapper.start_out if direction == "out" else swapper.start_in
    with pytest.raises(ValueError, match=message):
        start(pairs)
    assert len(swapper.moving) == 2
    swapper.check_integrity()
    swapper.slots.check_integrity([range(5), [2], [4]])


def test_a_block_may_be_read_by_two_moves() -> None:
    planes = kv_planes()
    fill(planes, 3)
    with swapping(planes) as (swapper, host):
        slots = host.allocate(2)
        swapper.start_out([(0, slots[0])])
        swapper.start_out([(0, slots[1])])
        finish(swapper)
        assert torch.equal(host.memory[slots[0]], host.memory[slots[1]])


def test_a_link_without_speed_is_refused() -> None:
    for gbps in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="a link of"):
            simulated(gbps)


def test_a_host_tier_holds_blocks_of_the_pool_it_is_made_for() -> None:
    planes = kv_planes()
    tier = make_host_tier(planes, 3, gbps=None, clock=FakeClock())
    assert (tier.slots.count, tier.block_bytes) == (3, block_bytes(planes))
    tier.start_out([(BLOCKS - 1, tier.slots.allocate(1)[0])])
    assert [ticket.state for ticket in finish(tier)] == ["done"]
    tier.close()


def test_a_runner_without_planes_has_no_host_tier() -> None:
    with pytest.raises(ValueError, match="cannot be moved"):
        make_host_tier([], 3, gbps=None, clock=FakeClock())


class Moves(RuleBasedStateMachine):
    """Any order of starts, cancels and polls, on a link that is modelled or real: what `done` says is what lies there.

    Blocks are free, or of a known text, or in a move; as an engine would, a block that a move writes is not read.
    """

    def __init__(self) -> None:
        super().__init__()
        self.planes = kv_planes(torch.bfloat16)
        self.host = HostPool(6, block_bytes(self.planes))
        self.clock = FakeClock()
        self.swapper: Swapper | None = None
        self.seed = 0
        self.text: dict[int, bytes] = {}
        self.saved: dict[int, bytes] = {}
        self.loading: dict[Ticket, None] = {}
        self.saving: dict[Ticket, list[bytes]] = {}

    @initialize(gbps=st.sampled_from([None, 0.001]))
    def begin(self, gbps: float | None) -> None:
        copier = ThreadCopier(between_memories(self.planes, self.host))
        self.swapper = Swapper(self.host, copier, BLOCKS, self.host.block_bytes, gbps=gbps, clock=self.clock)
        fill(self.planes, 0)
        self.text = {block: contents(self.planes, block) for block in range(BLOCKS)}

    @rule(blocks=st.lists(st.integers(0, BLOCKS - 1), min_size=1, max_size=3, unique=True))
    def move_out(self, blocks: list[int]) -> None:
        assert self.swapper is not None
        blocks = [block for block in blocks if block in self.text][: self.host.free_count]
        if blocks:
            pairs = list(zip(blocks, self.host.allocate(len(blocks)), strict=True))
            self.saving[self.swapper.start_out(pairs)] = [self.text[block] for block in blocks]

    @precondition(lambda self: self.saved)
    @rule(data=st.data())
    def move_in(self, data: st.DataObject) -> None:
        assert self.swapper is not None
        read = {block for ticket in self.saving for block, _ in ticket.pairs}
        written = {block for ticket in self.loading for block, _ in ticket.pairs}
        targets = sorted(set(range(BLOCKS)) - read - written)
        if targets:
            pair = data.draw(st.sampled_from(targets)), data.draw(st.sampled_from(sorted(self.saved)))
            self.text.pop(pair[0], None)
            self.loading[self.swapper.start_in([pair])] = None

    @precondition(lambda self: self.saved)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        """Slots may go at any time: a move that reads them has its own reference."""
        slot = data.draw(st.sampled_from(sorted(self.saved)))
        if all(slot != other for ticket in self.loading for _, other in ticket.pairs):
            del self.saved[slot]
            self.host.release([slot])

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        assert self.swapper is not None
        if self.swapper.moving:
            self.swapper.cancel(data.draw(st.sampled_from(self.swapper.moving)))

    @rule(seconds=st.floats(0, 2))
    def poll(self, seconds: float) -> None:
        assert self.swapper is not None
        self.clock.now += seconds
        self.swapper.synchronize()
        for ticket in self.swapper.poll():
            self.settle(ticket)

    def settle(self, ticket: Ticket) -> None:
        done = ticket.state == "done"
        assert done or ticket.cancelled
        for i, (block, slot) in enumerate(ticket.pairs):
            if ticket.direction == "in":
                if done:
                    self.text[block] = self.saved[slot]
            elif done:
                self.saved[slot] = self.saving[ticket][i]
            else:
                self.host.release([slot])
        self.saving.pop(ticket, None)
        self.loading.pop(ticket, None)

    @invariant()
    def nothing_is_lost(self) -> None:
        if self.swapper is None:
            return
        self.swapper.check_integrity()
        held = [[slot for _, slot in ticket.pairs] for ticket in self.swapper.moving]
        coming = [[slot for _, slot in ticket.pairs] for ticket in self.saving]
        self.host.check_integrity([list(self.saved), *held, *coming])
        for block, text in self.text.items():
            assert contents(self.planes, block) == text
        for slot, text in self.saved.items():
            assert self.host.memory[slot].numpy().tobytes() == text

    def teardown(self) -> None:
        if self.swapper is not None:
            self.swapper.close()
            for ticket in self.swapper.poll():
                self.settle(ticket)
            self.nothing_is_lost()
            assert not self.swapper.moving


TestMoves = Moves.TestCase
TestMoves.settings = settings(deadline=None, max_examples=40, stateful_step_count=25)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("layout", ["layers", "parts"])
def test_blocks_of_a_gpu_come_back_bit_for_bit_beside_steps(layout: str) -> None:
    planes = [plane.cuda() for plane in kv_planes(torch.bfloat16, layout, head_dim=8)]
    fill(planes, 5)
    before = [contents([plane.cpu() for plane in planes], block) for block in range(BLOCKS)]
    tier = make_host_tier(planes, BLOCKS, gbps=None, clock=FakeClock())
    slots = tier.slots.allocate(BLOCKS)
    # Work that is still queued when the copy is asked for: the copy has to see what it leaves.
    busy = torch.ones(2048, 2048, device="cuda")
    for _ in range(50):
        busy = (busy @ busy).clamp(-1, 1)
    for plane in in_words(planes):
        plane.bitwise_xor_(-1)
    tier.start_out(list(zip(range(BLOCKS), reversed(slots), strict=True)))
    assert [ticket.state for ticket in finish(tier)] == ["done"]
    for plane in in_words(planes):
        plane.zero_()
    tier.start_in(list(zip(range(BLOCKS), reversed(slots), strict=True)))
    assert [ticket.state for ticket in finish(tier)] == ["done"]
    for plane in in_words(planes):
        plane.bitwise_xor_(-1)
    assert [contents([plane.cpu() for plane in planes], block) for block in range(BLOCKS)] == before
    assert tier.stats.inward.seconds > 0
    tier.close()
