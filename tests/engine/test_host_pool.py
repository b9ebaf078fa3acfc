"""Slots of a lower tier, host memory, and KV pools seen as planes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.kv.host_pool import HostPool
from engine.kv.planes import block_bytes, in_words, parts, planes_of
from engine.kv.slots import OutOfSlots, SlotPool
from engine.kv.tensors import KvTensors


def test_slots_of_one_call_are_neighbours() -> None:
    pool = SlotPool(8)
    first = pool.allocate(4)
    pool.release([1, 2])
    assert (first, pool.allocate(3)) == ([0, 1, 2, 3], [1, 2, 4])


def test_too_many_slots_are_refused_whole() -> None:
    pool = SlotPool(4)
    held = pool.allocate(3)
    with pytest.raises(OutOfSlots, match="2 slots wanted, 1 free"):
        pool.allocate(2)
    pool.check_integrity([held])


def test_a_shared_slot_is_free_after_its_last_holder() -> None:
    pool = SlotPool(2)
    held = pool.allocate(1)
    pool.share(held)
    pool.release(held)
    assert pool.is_used(held[0])
    pool.release(held)
    assert not pool.is_used(held[0])
    pool.check_integrity([])


def test_a_free_slot_cannot_be_released_or_shared() -> None:
    pool = SlotPool(2)
    with pytest.raises(AssertionError, match="slot 1 is free"):
        pool.release([1])
    with pytest.raises(AssertionError, match="slot 1 is free"):
        pool.share([1])


def test_what_is_outside_of_the_pool_is_not_used() -> None:
    pool = SlotPool(1)
    pool.allocate(1)
    assert [pool.is_used(slot) for slot in (-1, 0, 1)] == [False, True, False]


@given(st.lists(st.tuples(st.sampled_from(["allocate", "share", "release"]), st.integers(0, 3))))
def test_slots_are_free_or_accounted_for(actions: list[tuple[str, int]]) -> None:
    pool = SlotPool(6)
    holders: list[list[int]] = []
    for action, number in actions:
        if action == "allocate" and number <= pool.free_count:
            holders.append(pool.allocate(number))
        elif action == "share" and number < len(holders):
            pool.share(holders[number])
            holders.append(list(holders[number]))
        elif action == "release" and number < len(holders):
            pool.release(holders.pop(number))
        pool.check_integrity(holders)


def test_memory_that_is_not_there_is_an_error() -> None:
    with pytest.raises(MemoryError, match="host KV blocks"):
        HostPool(2, 2**50)


@pytest.mark.parametrize(("dtype", "head_dim"), [(torch.float32, 8), (torch.bfloat16, 8), (torch.bfloat16, 3)])
def test_planes_are_the_pool_itself(dtype: torch.dtype, head_dim: int) -> None:
    kv = KvTensors(3, 2, head_dim, 5, 4, dtype, torch.device("cpu"))
    for tensor in (*kv.keys, *kv.values):
        tensor.zero_()
    planes = in_words(planes_of(kv))
    assert block_bytes(planes) * 5 == sum(t.numel() * t.element_size() for t in (*kv.keys, *kv.values))
    planes[1][3] = 1
    assert kv.values[0][:, 12:16].count_nonzero() > 0
    assert kv.values[0].count_nonzero() == kv.values[0][:, 12:16].count_nonzero()


def test_a_slot_is_one_piece_of_all_parts() -> None:
    planes = in_words(planes_of(KvTensors(2, 2, 4, 3, 4, torch.float32, torch.device("cpu"))))
    host = HostPool(7, block_bytes(planes))
    host.memory.zero_()
    for number, part in enumerate(parts(host.memory, planes)):
        part[5] = number + 1
    assert host.memory.view(torch.int64)[5].tolist() == [n for n in (1, 2, 3, 4) for _ in range(16)]
    assert not host.memory[:5].any()
    assert not host.memory[6:].any()


def test_blocks_of_another_size_are_refused() -> None:
    planes = in_words(planes_of(KvTensors(1, 1, 4, 3, 4, torch.float32, torch.device("cpu"))))
    with pytest.raises(ValueError, match="do not fit slots of 100"):
        parts(HostPool(1, 100).memory, planes)
