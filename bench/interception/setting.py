"""Machines and models that the simulator knows.

The first two are InferCept's: A100s, with the times and the link that the released constants decode to. Pools are what
80 GB leave beside the weights; 13B lies on two GPUs, so its bytes and its link are those of one of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from engine.interception.policy import Timing
from engine.interception.profile import PROFILES

_GB = 10**9
_KIB = 1024


@dataclass(frozen=True, slots=True)
class Setting:
    """A model on a machine: how long steps take, and the sizes of both tiers."""

    name: str
    timing: Timing
    bytes_per_token: int
    kv_tokens: int
    host_tokens: int
    gbps: float
    block_size: int = 16

    def with_kv_tokens(self, kv_tokens: int | None) -> Setting:
        """With another pool on the device."""
        return self if kv_tokens is None else replace(self, kv_tokens=kv_tokens)


def _setting(name: str, kib_per_token: int, kv_gb: float, host_gb: float, gbps: float) -> Setting:
    size = kib_per_token * _KIB
    return Setting(name, PROFILES[name], size, int(kv_gb * _GB / size), int(host_gb * _GB / size), gbps)


SETTINGS = {
    setting.name: setting
    for setting in (
        _setting("gptj-6b", 448, kv_gb=58, host_gb=128, gbps=10.0),
        _setting("vicuna-13b", 400, kv_gb=57, host_gb=64, gbps=5.0),
        _setting("h200-8b", 128, kv_gb=108, host_gb=512, gbps=50.0),
    )
}
