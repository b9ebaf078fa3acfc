"""Copies between a KV pool on a GPU and pinned host memory, on streams beside that of the steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from engine.kv.host_pool import HostPool
from engine.kv.planes import Planes
from engine.kv.staging import Staging
from engine.kv.swap import Ticket

_STAGING_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class _Lane:
    stream: torch.cuda.Stream
    staging: Staging


@dataclass(frozen=True, slots=True)
class _Span:
    begin: torch.cuda.Event
    end: torch.cuda.Event


class CudaCopier:
    """See `Copier`. One stream for each direction, since the link carries both at once.

    A copy begins after the steps launched before it, which may still write what it reads or read where it writes. Later
    steps do not wait for it: they touch its blocks only after its end has been seen here.
    """

    poll_s = 0.0005

    def __init__(self, planes: Planes, host: HostPool) -> None:
        """Pins the host's memory. Raises `MemoryError` when that is not possible."""
        self._device = planes[0].device
        self._host = host
        self._spans: dict[int, _Span] = {}
        rows = max(_STAGING_BYTES // host.block_bytes, 1)
        self._lanes = {direction: self._lane(planes, rows) for direction in ("out", "in")}
        # Torch's own pinned memory comes in powers of two.
        self._runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        code = int(self._runtime.cudaHostRegister(host.memory.data_ptr(), host.memory.nbytes, 0))
        if code:
            raise MemoryError(f"{host.memory.nbytes} bytes of host memory cannot be pinned: CUDA error {code}")

    def start(self, ticket: Ticket) -> None:
        """See `Copier.start`."""
        lane = self._lanes[ticket.direction]
        span = _Span(_event(), _event())
        lane.stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(lane.stream):
            span.begin.record()
            try:
                copy = lane.staging.copy_out if ticket.direction == "out" else lane.staging.copy_in
                copy(ticket.pairs)
            except Exception:
                # Nobody will ask for the end of what has been launched.
                lane.stream.synchronize()
                raise
            span.end.record()
        self._spans[ticket.number] = span

    def cancel(self, ticket: Ticket) -> None:
        """See `Copier.cancel`: what has been launched runs to its end."""

    def seconds(self, ticket: Ticket) -> float | None:
        """See `Copier.seconds`."""
        span = self._spans[ticket.number]
        if not span.end.query():  # type: ignore[no-untyped-call]
            return None
        del self._spans[ticket.number]
        return float(span.begin.elapsed_time(span.end)) / 1000

    def synchronize(self) -> None:
        """See `Copier.synchronize`."""
        for lane in self._lanes.values():
            lane.stream.synchronize()

    def close(self) -> None:
        """See `Copier.close`."""
        self.synchronize()
        self._runtime.cudaHostUnregister(self._host.memory.data_ptr())

    def _lane(self, planes: Planes, rows: int) -> _Lane:
        stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        return _Lane(stream, Staging(planes, self._host.memory, rows))


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
