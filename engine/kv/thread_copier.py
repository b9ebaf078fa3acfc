"""Copies between a KV pool in this process's memory and the host pool, on one thread beside the steps."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor

from engine.kv.host_pool import HostPool
from engine.kv.planes import Planes, in_words, parts
from engine.kv.swap import Ticket


class ThreadCopier:
    """See `Copier`. Ticket by ticket, in order, on one core; lets go of the interpreter while it copies.

    Raises `ValueError` for blocks of another size than the host's.
    """

    poll_s = 0.001

    def __init__(self, planes: Planes, host: HostPool) -> None:
        words = in_words(planes)
        # numpy copies on the thread that asks; torch would bring in threads that the step needs.
        self._parts = [(p.numpy(), h.numpy()) for p, h in zip(words, parts(host.memory, words), strict=True)]
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="kv-copy")
        self._copies: dict[int, Future[float]] = {}

    def start(self, ticket: Ticket) -> None:
        """See `Copier.start`."""
        self._copies[ticket.number] = self._thread.submit(self._copy, ticket)

    def cancel(self, ticket: Ticket) -> None:
        """See `Copier.cancel`."""
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
            for pool, host in self._parts:
                if ticket.direction == "out":
                    host[slot] = pool[block]
                else:
                    pool[block] = host[slot]
        return time.perf_counter() - started
