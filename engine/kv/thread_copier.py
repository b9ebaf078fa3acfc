"""Copies block by block, on one thread beside the steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeAlias

from engine.kv.host_pool import HostPool
from engine.kv.planes import Planes, in_words, parts
from engine.kv.swap import Direction, Ticket

BlockCopier: TypeAlias = Callable[[Direction, int, int], None]
"""Copies one pair: direction, block, slot."""


class ThreadCopier:
    """See `Copier`. In order, on one core; `copy_block` should let go of the interpreter while it copies."""

    poll_s = 0.001

    def __init__(self, copy_block: BlockCopier) -> None:
        self._copy_block = copy_block
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="kv-copy")
        self._copies: dict[int, Future[float]] = {}

    def start(self, ticket: Ticket) -> None:
        """See `Copier.start`."""
        self._copies[ticket.number] = self._thread.submit(self._copy, ticket)

    def cancel(self, ticket: Ticket) -> None:
        """See `Copier.cancel`; one that has begun ends after the block that it is at."""
        copy = self._copies.get(ticket.number)
        if copy is not None:
            copy.cancel()

    def seconds(self, ticket: Ticket) -> float | None:
        """See `Copier.seconds`."""
        if not self._copies[ticket.number].done():
            return None
        copy = self._copies.pop(ticket.number)
        return 0.0 if copy.cancelled() else copy.result()

    def synchronize(self) -> None:
        """See `Copier.synchronize`."""
        for copy in self._copies.values():
            if not copy.cancelled():
                copy.exception()

    def close(self) -> None:
        """See `Copier.close`."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _copy(self, ticket: Ticket) -> float:
        started = time.perf_counter()
        for block, slot in ticket.pairs:
            if ticket.cancelled:
                break
            self._copy_block(ticket.direction, block, slot)
        return time.perf_counter() - started


def between_memories(planes: Planes, host: HostPool) -> BlockCopier:
    """Copies between a pool in this process's memory and the host pool. Raises `ValueError` when their blocks differ
    in size."""
    words = in_words(planes)
    # numpy copies on the thread that asks; torch would bring in threads that the step needs.
    pairs = [(plane.numpy(), part.numpy()) for plane, part in zip(words, parts(host.memory, words), strict=True)]

    def copy_block(direction: Direction, block: int, slot: int) -> None:
        for plane, part in pairs:
            if direction == "out":
                part[slot] = plane[block]
            else:
                plane[block] = part[slot]

    return copy_block
