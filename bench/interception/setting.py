"""Machines and models that the simulator knows.

All but the last are InferCept's: A100s, with the times and the link that the released constants decode to (see
`engine.interception.profile`). Its ablation is of 13B without a number of GPUs: that must be one, for on two
`discard` cannot waste the 20 to 30 % that are reported. To compute 7,000 tokens a second again (2 requests a second
of the released file) takes two GPUs a fifth of the time, while contexts that run fill a fifth of their pool; it takes
one GPU two fifths, which is the share that the paper has, and most of its pool is in use then. Bytes, pool and link
of 13B on two GPUs are those of one of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from engine.interception.policy import Timing
from engine.interception.profile import PROFILES

_GB = 10**9
_KIB = 1024
_A100_GB = 85.0
_USED_SHARE = 0.9
_ACTIVATIONS_GB = 2.0
"""Of a step of 2,048 tokens, and the CUDA context."""


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


def _setting(
    name: str, kib_per_token: int, *, device_gb: float, weights_gb: float, host_gb: float, gbps: float
) -> Setting:
    """The pool is what vLLM 0.2 takes: nine tenths of the device without weights and activations."""
    size = kib_per_token * _KIB
    kv_gb = _USED_SHARE * device_gb - weights_gb - _ACTIVATIONS_GB
    return Setting(name, PROFILES[name], size, int(kv_gb * _GB / size), int(host_gb * _GB / size), gbps)


SETTINGS = {
    setting.name: setting
    for setting in (
        _setting("gptj-6b", 448, device_gb=_A100_GB, weights_gb=12.1, host_gb=128, gbps=10.0),
        _setting("vicuna-13b", 800, device_gb=_A100_GB, weights_gb=26.0, host_gb=128, gbps=10.0),
        _setting("vicuna-13b-tp2", 400, device_gb=_A100_GB, weights_gb=13.0, host_gb=64, gbps=5.0),
        _setting("h200-8b", 128, device_gb=141.0, weights_gb=16.1, host_gb=512, gbps=50.0),
    )
}
