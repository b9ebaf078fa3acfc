"""The largest values of each row, in an order that leaves nothing open: equal values by their places.

Where `topk` takes any of several equal values, this takes the first; logits from bfloat16 are often equal.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

_PLACE_BITS = 32
_PLACES = (1 << _PLACE_BITS) - 1


def best_values(values: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The first `count` columns of a stable descending sort of float32 `[rows, columns]`: values and places (int64).
    NaN is largest."""
    columns = values.shape[-1]
    if values.device.type == "cpu":
        # numpy's partition and sort are vectorised and many times as fast as torch's. Row by row, what they work on
        # stays in the processor's cache.
        order = np.arange(columns - 1, -1, -1)
        keys = torch.from_numpy(np.stack([_best_keys(row, order, count) for row in values.numpy()]))
    else:
        keys = _keys(values).topk(count, dim=-1).values
    places = columns - 1 - (keys & _PLACES)
    return values.gather(1, places), places


def _keys(values: torch.Tensor) -> torch.Tensor:
    """Different int64 numbers in the order of the values, and of equal ones the later the smaller."""
    # Adding 0 makes zero of minus zero. Bits of floats are in the order of their values, but negative ones backwards.
    bits = (values + 0.0).view(torch.int32)
    bits ^= (bits >> 31) & 0x7FFFFFFF
    columns = values.shape[-1]
    return (bits.long() << _PLACE_BITS) | torch.arange(columns - 1, -1, -1, device=values.device)


def _best_keys(row: NDArray[np.float32], order: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """The `count` largest of `_keys`, largest first."""
    bits = (row + np.float32(0)).view(np.int32)
    bits ^= (bits >> 31) & 0x7FFFFFFF
    keys = bits.astype(np.int64)
    keys <<= _PLACE_BITS
    keys |= order
    if count < len(keys):
        keys.partition(len(keys) - count)
        keys = keys[len(keys) - count :]
    keys.sort()
    return keys[::-1]
