"""Blocks of KV in files: the tier below host memory, for this process only.

What is read is compared with a digest that was kept in memory when it was written, so a file that has changed in any
way, or is an older one, is a move that fails: its block counts as lost and is computed again.
"""

from __future__ import annotations

import fcntl
import hashlib
from collections.abc import Callable
from pathlib import Path

from engine.kv.host_pool import HostPool
from engine.kv.slots import SlotPool
from engine.kv.swap import Direction, Swapper
from engine.kv.thread_copier import ThreadCopier


class DiskTierError(Exception):
    """The folder cannot be used."""


class CorruptBlock(Exception):
    """A file does not hold what was written to it."""


class DiskTier(Swapper):
    """A `Swapper` between the slots of `host`, as its blocks, and `count` files: `start_out` demotes, `start_in`
    promotes. It takes up to `count` times the size of a block, on disk.

    The folder is this tier's alone: it is emptied of blocks at start and at the end. Raises `DiskTierError`.
    """

    def __init__(self, host: HostPool, folder: Path, count: int, *, clock: Callable[[], float]) -> None:
        self._files = _BlockFiles(host, folder)
        copier = ThreadCopier(self._files.copy)
        super().__init__(SlotPool(count), copier, host.count, host.block_bytes, gbps=None, clock=clock)

    def close(self) -> None:
        """See `Swapper.close`; removes the files."""
        super().close()
        self._files.close()


class _BlockFiles:
    """One file for each slot, used by one thread at a time."""

    def __init__(self, host: HostPool, folder: Path) -> None:
        self._memory = host.memory.numpy()
        self._folder = folder
        self._digests: dict[int, bytes] = {}
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = (folder / "lock").open("w")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._clean()
        except BlockingIOError as error:
            self._lock.close()
            raise DiskTierError(f"another engine keeps KV blocks in {folder}") from error
        except OSError as error:
            raise DiskTierError(f"no KV blocks can be kept in {folder}: {error}") from error

    def copy(self, direction: Direction, block: int, slot: int) -> None:
        """Writes slot `block` of the host to file `slot`, or reads it. Raises `OSError`, `CorruptBlock`."""
        if direction == "out":
            self._write(block, slot)
        else:
            self._read(block, slot)

    def close(self) -> None:
        """Removes the files and leaves the folder to others."""
        if not self._lock.closed:
            self._clean()
            self._lock.close()

    def _write(self, block: int, slot: int) -> None:
        data = self._memory[block]
        self._digests.pop(slot, None)
        unfinished = self._path(slot).with_suffix(".unfinished")
        unfinished.write_bytes(data)
        unfinished.replace(self._path(slot))
        self._digests[slot] = _digest(data)

    def _read(self, block: int, slot: int) -> None:
        data = self._memory[block]
        with self._path(slot).open("rb") as file:
            length = file.readinto(data)
            longer = file.read(1)
        if length != len(data) or longer or _digest(data) != self._digests.get(slot):
            raise CorruptBlock(f"KV block {slot} on disk is not what was written")

    def _path(self, slot: int) -> Path:
        return self._folder / f"{slot}.kv"

    def _clean(self) -> None:
        for pattern in ("*.kv", "*.unfinished"):
            for path in self._folder.glob(pattern):
                path.unlink(missing_ok=True)


def _digest(data: memoryview) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()
