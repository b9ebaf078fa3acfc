"""Blocks in files: what comes back is what was written, or nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.kv.disk_tier import DiskTier, DiskTierError
from engine.kv.host_pool import HostPool
from engine.kv.swap import Ticket

HOST_SLOTS, FILES, BYTES = 4, 3, 1024


@pytest.fixture
def host() -> HostPool:
    """All slots are allocated and differ."""
    pool = HostPool(HOST_SLOTS, BYTES)
    pool.allocate(HOST_SLOTS)
    pool.memory.copy_(torch.randint(0, 256, pool.memory.shape, dtype=torch.uint8))
    return pool


@pytest.fixture
def tier(host: HostPool, tmp_path: Path) -> Iterator[DiskTier]:
    tier = make_tier(host, tmp_path)
    yield tier
    tier.close()


def make_tier(host: HostPool, folder: Path) -> DiskTier:
    return DiskTier(host, folder, FILES, clock=lambda: 0.0)


def finish(tier: DiskTier) -> list[Ticket]:
    tier.synchronize()
    return tier.poll()


def demote(tier: DiskTier, slot: int) -> int:
    """The file that host slot `slot` went to."""
    (file,) = tier.slots.allocate(1)
    tier.start_out([(slot, file)])
    assert [ticket.state for ticket in finish(tier)] == ["done"]
    return file


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(min_size=BYTES, max_size=BYTES), target=st.integers(0, HOST_SLOTS - 1))
def test_a_block_comes_back_bit_for_bit(tier: DiskTier, host: HostPool, data: bytes, target: int) -> None:
    host.memory[0] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    file = demote(tier, 0)
    host.memory.zero_()
    tier.start_in([(target, file)])
    assert [ticket.state for ticket in finish(tier)] == ["done"]
    assert host.memory[target].numpy().tobytes() == data
    assert host.memory.count_nonzero() == host.memory[target].count_nonzero()
    tier.slots.release([file])


@pytest.mark.parametrize("damage", ["flipped", "short", "long", "missing", "older", "another"])
def test_a_damaged_file_is_a_lost_block(tier: DiskTier, host: HostPool, tmp_path: Path, damage: str) -> None:
    file = demote(tier, 0)
    path = tmp_path / f"{file}.kv"
    content = path.read_bytes()
    match damage:
        case "flipped":
            path.write_bytes(content[:100] + bytes([content[100] ^ 1]) + content[101:])
        case "short":
            path.write_bytes(content[:-1])
        case "long":
            path.write_bytes(content + b"0")
        case "missing":
            path.unlink()
        case "older":
            tier.start_out([(1, file)])
            finish(tier)
            path.write_bytes(content)
        case "another":
            os.replace(tmp_path / f"{demote(tier, 1)}.kv", path)
    tier.start_in([(2, file)])
    (ticket,) = finish(tier)
    assert ticket.state == "failed"
    assert ticket.error.startswith("FileNotFoundError" if damage == "missing" else "CorruptBlock")
    assert finish(tier) == []


def test_a_file_that_was_never_written_holds_nothing(tier: DiskTier, tmp_path: Path) -> None:
    (file,) = tier.slots.allocate(1)
    (tmp_path / f"{file}.kv").write_bytes(bytes(BYTES))
    tier.start_in([(0, file)])
    assert [ticket.state for ticket in finish(tier)] == ["failed"]


def test_a_write_that_fails_leaves_nothing_to_be_read(tier: DiskTier, tmp_path: Path) -> None:
    file = demote(tier, 0)
    obstacle = tmp_path / f"{file}.unfinished"
    obstacle.mkdir()
    tier.start_out([(1, file)])
    (ticket,) = finish(tier)
    assert (ticket.state, ticket.error.split(":")[0]) == ("failed", "IsADirectoryError")
    tier.start_in([(2, file)])
    assert [ticket.state for ticket in finish(tier)] == ["failed"]
    obstacle.rmdir()


def test_what_a_process_that_died_has_left_is_removed(host: HostPool, tmp_path: Path) -> None:
    for name in ("0.kv", "7.kv", "1.unfinished", "notes.txt"):
        (tmp_path / name).write_bytes(b"old")
    tier = make_tier(host, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"lock", "notes.txt"}
    tier.close()


def test_files_are_gone_after_the_end(tier: DiskTier, tmp_path: Path) -> None:
    demote(tier, 0)
    assert len(list(tmp_path.glob("*.kv"))) == 1
    tier.close()
    assert list(tmp_path.glob("*.kv")) == []


def test_a_folder_is_one_engine_s_at_a_time(tier: DiskTier, host: HostPool, tmp_path: Path) -> None:
    file = demote(tier, 0)
    with pytest.raises(DiskTierError, match="another engine keeps"):
        make_tier(host, tmp_path)
    assert (tmp_path / f"{file}.kv").exists()
    tier.close()
    make_tier(host, tmp_path).close()


def test_a_folder_that_cannot_be_made_is_an_error(host: HostPool, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DiskTierError, match="no KV blocks can be kept in"):
        make_tier(host, tmp_path / "file" / "kv")
