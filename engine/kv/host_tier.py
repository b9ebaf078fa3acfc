"""The host tier of a model: memory for blocks, and what moves them."""

from __future__ import annotations

from collections.abc import Callable

from engine.kv.host_pool import HostPool
from engine.kv.planes import Planes, block_bytes
from engine.kv.swap import Copier, Swapper
from engine.kv.thread_copier import ThreadCopier, between_memories


def make_host_tier(planes: Planes, count: int, *, gbps: float | None, clock: Callable[[], float]) -> Swapper:
    """Room for `count` blocks of the pool behind `planes`; its `slots` are a `HostPool`. To be closed before the pool's
    memory goes. Raises `MemoryError`, and `ValueError` without planes.

    One process moves whole blocks here. Of a model split over several, each rank would have to move its shard of the
    same blocks, and a move would end when all ranks say so; runners that cannot do that have no planes.
    """
    if not planes:
        raise ValueError("this runner's KV cannot be moved to host memory")
    host = HostPool(count, block_bytes(planes))
    return Swapper(host, _make_copier(planes, host), len(planes[0]), host.block_bytes, gbps=gbps, clock=clock)


def _make_copier(planes: Planes, host: HostPool) -> Copier:
    if planes[0].device.type != "cuda":
        return ThreadCopier(between_memories(planes, host))
    from engine.kv.cuda_copier import CudaCopier

    return CudaCopier(planes, host)
