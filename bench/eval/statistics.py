"""Confidence intervals and paired tests, small enough to be checked by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Z_95 = 1.959964


def percentile(values: Sequence[float], percent: float) -> float | None:
    """Linear between the two nearest; None of nothing."""
    return float(np.percentile(values, percent)) if len(values) else None


def wilson(right: int, count: int) -> tuple[float, float]:
    """The 95 % interval of a proportion (Wilson's score interval)."""
    if not count:
        return 0.0, 1.0
    share, z2 = right / count, Z_95 * Z_95
    middle = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = Z_95 / (1 + z2 / count) * math.sqrt(share * (1 - share) / count + z2 / (4 * count * count))
    return max(0.0, middle - half), min(1.0, middle + half)


def mcnemar(only_first: int, only_second: int) -> float:
    """The two-sided exact probability of so uneven a split of the questions that only one of two got right."""
    count = only_first + only_second
    if not count:
        return 1.0
    tail = sum(math.comb(count, k) for k in range(min(only_first, only_second) + 1))
    return min(1.0, 2 * tail / (1 << count))


def bootstrap_difference(
    first: Sequence[float], second: Sequence[float], resamples: int = 10_000, seed: int = 1
) -> tuple[float, float]:
    """The 95 % interval of mean(second) - mean(first); the values are pairs."""
    differences = np.asarray(second, dtype=float) - np.asarray(first, dtype=float)
    means = _resampled(differences, resamples, seed).mean(axis=1)
    return float(np.percentile(means, 2.5)), float(np.percentile(means, 97.5))


def bootstrap_median_ratio(
    first: Sequence[float], second: Sequence[float], resamples: int = 10_000, seed: int = 1
) -> tuple[float, float]:
    """The 95 % interval of median(first) / median(second), where pairs are drawn: the speed-up."""
    pairs = _resampled(np.column_stack([first, second]), resamples, seed)
    ratios = np.median(pairs[:, :, 0], axis=1) / np.median(pairs[:, :, 1], axis=1)
    return float(np.percentile(ratios, 2.5)), float(np.percentile(ratios, 97.5))


def _resampled(rows: Floats, resamples: int, seed: int) -> Floats:
    """[n, ...] -> [resamples, n, ...], drawn with replacement."""
    resampled: Floats = rows[np.random.default_rng(seed).integers(0, len(rows), (resamples, len(rows)))]
    return resampled
