"""KV that attention cannot read now is kept where it is, and let go of exactly once."""

from __future__ import annotations

import pytest

from engine.kv.blocks import BlockPool
from engine.kv.parked import Parked
from engine.kv.slots import SlotPool

SIZE = 4


def parked(count: int = 4) -> tuple[Parked, BlockPool]:
    """Blocks 2, 3, … of a context, the last of which is half full."""
    pool = BlockPool(8, SIZE, SlotPool(8))
    made = Parked(pool, pool.host)
    for index, block in enumerate(pool.allocate(count), 2):
        made.put(index, block)
    made.end = (2 + count) * SIZE - 2
    return made, pool


def move_out(kept: Parked, pool: BlockPool, index: int) -> None:
    kept.moved_out(kept[index], pool.host.allocate(1)[0])


def free(pool: BlockPool) -> tuple[int, int]:
    return pool.free_count, pool.host.free_count


def test_what_is_put_is_handed_back_once() -> None:
    kept, pool = parked(2)
    blocks = kept.device_blocks
    assert kept.first == 2
    assert kept.take(2) == blocks[0]
    assert kept.take(2) is None
    assert kept.device_blocks == blocks[1:]
    pool.release(blocks[:1])
    kept.drop(3)
    assert not kept
    assert free(pool) == (8, 8)


def test_a_place_takes_one_block_only() -> None:
    kept, pool = parked(1)
    with pytest.raises(AssertionError, match="block 2 is parked"):
        kept.put(2, pool.allocate(1)[0])


def test_a_move_out_gives_the_block_back_and_a_move_in_the_slot() -> None:
    kept, pool = parked(2)
    move_out(kept, pool, 3)
    assert free(pool) == (7, 7)
    assert (kept.absent, len(kept.slots), len(kept.device_blocks)) == ([3], 1, 1)
    assert kept.take(3) is None
    kept.moved_in(kept[3], pool.allocate(1)[0])
    assert free(pool) == (6, 8)
    assert kept.absent == []


def test_what_a_move_brings_is_not_absent() -> None:
    kept, pool = parked(2)
    move_out(kept, pool, 3)
    kept[3].move = object()
    assert kept.absent == []


def test_dropping_the_last_place_shortens_what_is_parked() -> None:
    kept, pool = parked(3)
    assert kept.end == 18
    kept.drop(4)
    assert kept.end == 16
    kept.drop(2)
    assert kept.end == 16
    assert kept.first == 3


def test_all_places_from_an_index_on_are_given_up() -> None:
    kept, pool = parked(4)
    move_out(kept, pool, 4)
    move = object()
    place = kept[5]
    place.move = move
    kept.drop_from(3)
    assert [index for index, _ in kept.items()] == [2]
    assert free(pool) == (7, 8)
    # Whoever moves it sees that nobody wants it any more.
    assert place.move is None


def test_dropping_the_device_keeps_what_is_on_the_host() -> None:
    kept, pool = parked(4)
    move_out(kept, pool, 3)
    move_out(kept, pool, 4)
    place = kept[4]
    place.block, place.move = pool.allocate(1)[0], object()
    kept.drop_device()
    assert [index for index, _ in kept.items()] == [3, 4]
    assert kept.absent == [3, 4]
    assert free(pool) == (8, 6)
    assert kept.end == 5 * SIZE
