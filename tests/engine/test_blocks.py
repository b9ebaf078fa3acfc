"""Handing out, sharing, caching and evicting blocks."""

from __future__ import annotations

import pytest

from engine.kv.blocks import BlockPool, OutOfBlocks
from engine.kv.prefix import ROOT

SIZE = 4


def sealed(pool: BlockPool, count: int, text: int) -> list[int]:
    """A context's `count` blocks, all keyed; contexts of different `text` have nothing in common."""
    blocks = pool.allocate(count)
    parent = ROOT
    for block in blocks:
        assert pool.seal(block, parent, (text,) * SIZE) == block
        parent = pool.prefix.uid(block)
    return blocks


def test_a_growing_context_stays_one_run_beside_others() -> None:
    pool = BlockPool(64, SIZE)
    first, second = pool.allocate(2), pool.allocate(2)
    for _ in range(10):
        first += pool.allocate(1, after=first[-1])
        second += pool.allocate(1, after=second[-1])
    for blocks in (first, second):
        assert blocks == list(range(blocks[0], blocks[0] + 12))


def test_a_new_run_is_placed_where_all_of_it_fits() -> None:
    pool = BlockPool(16, SIZE)
    pool.allocate(4)
    blocks = pool.allocate(11)
    assert blocks == list(range(blocks[0], blocks[0] + 11))


def test_a_run_of_evicted_blocks_is_in_order() -> None:
    pool = BlockPool(8, SIZE)
    pool.release(sealed(pool, 8, 1))
    assert pool.allocate(5) == [3, 4, 5, 6, 7]


def test_too_many_blocks_are_refused_whole() -> None:
    pool = BlockPool(4, SIZE)
    held = pool.allocate(2)
    with pytest.raises(OutOfBlocks):
        pool.allocate(3)
    pool.check_integrity([held])


def test_a_released_block_is_cached_only_with_a_key() -> None:
    pool = BlockPool(8, SIZE)
    keyed, plain = sealed(pool, 2, 1), pool.allocate(3)
    pool.release(keyed)
    pool.release(plain)
    assert (pool.free_count, pool.cached_count) == (8, 2)
    pool.check_integrity([])


def test_free_blocks_are_used_before_cached_ones() -> None:
    pool = BlockPool(8, SIZE)
    cached = sealed(pool, 3, 1)
    pool.release(cached)
    assert not set(pool.allocate(5)) & set(cached)
    assert pool.cached_count == 3


def test_the_longest_unused_is_evicted_first_and_from_its_end() -> None:
    pool = BlockPool(6, SIZE)
    old, new = sealed(pool, 3, 1), sealed(pool, 3, 2)
    pool.release(new)
    pool.release(old)
    order = [pool.allocate(1)[0] for _ in range(6)]
    assert order == [*reversed(new), *reversed(old)]
    pool.check_integrity([order])


def test_a_cached_block_that_is_used_again_becomes_the_last_to_go() -> None:
    pool = BlockPool(2, SIZE)
    first, second = sealed(pool, 1, 1), sealed(pool, 1, 2)
    pool.release(first)
    pool.release(second)
    pool.share(first)
    pool.release(first)
    assert pool.allocate(1) == second


def test_eviction_never_takes_a_block_that_is_held() -> None:
    pool = BlockPool(6, SIZE)
    kept, dropped = sealed(pool, 3, 1), sealed(pool, 3, 2)
    pool.release(dropped)
    taken = pool.allocate(3)
    assert sorted(taken) == sorted(dropped)
    with pytest.raises(OutOfBlocks):
        pool.allocate(1)
    pool.check_integrity([kept, taken])


def test_an_evicted_block_has_lost_its_key() -> None:
    pool = BlockPool(1, SIZE)
    pool.release(sealed(pool, 1, 1))
    assert pool.prefix.find(ROOT, (1,) * SIZE) == 0
    assert pool.is_writable(pool.allocate(1)[0])
    assert pool.prefix.find(ROOT, (1,) * SIZE) is None


def test_a_second_copy_of_a_text_is_given_back() -> None:
    pool = BlockPool(4, SIZE)
    first = sealed(pool, 1, 1)
    [copy] = pool.allocate(1)
    assert pool.seal(copy, ROOT, (1,) * SIZE) == first[0]
    pool.check_integrity([first, first])
    assert (pool.free_count, pool.cached_count) == (3, 0)


def test_neither_shared_nor_keyed_blocks_may_be_written() -> None:
    pool = BlockPool(4, SIZE)
    shared, keyed, own = pool.allocate(1), sealed(pool, 1, 1), pool.allocate(1)
    pool.share(shared)
    assert [pool.is_writable(block) for block in (*shared, *keyed, *own)] == [False, False, True]


def test_a_leak_is_found() -> None:
    pool = BlockPool(4, SIZE)
    pool.allocate(1)
    with pytest.raises(AssertionError):
        pool.check_integrity([])


def test_releasing_or_sharing_a_free_block_is_an_error() -> None:
    with pytest.raises(AssertionError):
        BlockPool(4, SIZE).release([0])
    with pytest.raises(AssertionError):
        BlockPool(4, SIZE).share([0])
