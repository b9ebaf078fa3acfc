"""How long steps and moves take on a device: measured, fitted, kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec
import numpy as np


class ProfileError(ValueError):
    """A profile that cannot be made or read; says why."""


@dataclass(frozen=True, slots=True)
class Profile:
    """See `Timing`. Seconds: a step takes `base_s`, `token_s` for each query token beyond `flat_tokens` (below that the
    device waits for memory, not for arithmetic) and `context_token_s` for each token of KV read; a move takes
    `swap_base_s` and `swap_token_s` a token."""

    name: str
    base_s: float
    token_s: float
    context_token_s: float
    swap_token_s: float
    swap_base_s: float = 0.0
    flat_tokens: int = 0
    saturation_tokens: int = 384

    def forward_s(self, query_tokens: int, context_tokens: int) -> float:
        """T_fwd."""
        beyond = max(query_tokens - self.flat_tokens, 0)
        return self.base_s + self.token_s * beyond + self.context_token_s * context_tokens

    def swap_s(self, tokens: int) -> float:
        """T_swap."""
        return self.swap_base_s + self.swap_token_s * tokens if tokens else 0.0


@dataclass(frozen=True, slots=True)
class StepPoint:
    """A measured step."""

    query_tokens: int
    context_tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class MovePoint:
    """A measured move one way."""

    tokens: int
    seconds: float


def fit(name: str, steps: Sequence[StepPoint], moves: Sequence[MovePoint]) -> Profile:
    """The least relative error over all points; never a negative coefficient. S is where a token more costs what its
    share of the base does: from there on a step is dearer with every token. Raises `ProfileError`."""
    if len({step.query_tokens for step in steps}) < 3:
        raise ProfileError("steps of at least three sizes are needed")
    flats = [0, *sorted({step.query_tokens for step in steps})[:-2]]
    error, flat, (base, token, context) = min((_fit_steps(steps, flat) for flat in flats), key=lambda found: found[0])
    if base <= 0 or token <= 0:
        raise ProfileError("a step that does not get longer with its tokens cannot be fitted")
    swap_base, swap_token = _least_squares([(1, move.tokens) for move in moves], [move.seconds for move in moves])
    return Profile(
        name=name,
        base_s=base,
        token_s=token,
        context_token_s=context,
        swap_base_s=swap_base,
        swap_token_s=swap_token,
        flat_tokens=flat,
        saturation_tokens=max(flat + round(base / token), 1),
    )


def error(profile: Profile, steps: Sequence[StepPoint]) -> float:
    """The mean relative error of predicted steps."""
    errors = [abs(profile.forward_s(s.query_tokens, s.context_tokens) / s.seconds - 1) for s in steps]
    return sum(errors) / len(errors)


def save(profile: Profile, path: Path) -> None:
    """Writes it as JSON, as a whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".new")
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(asdict(profile))))
    temporary.replace(path)


def load(path: Path) -> Profile:
    """Raises `ProfileError`."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Profile)
    except (OSError, msgspec.MsgspecError) as problem:
        raise ProfileError(f"{path}: {problem}") from problem


def _fit_steps(steps: Sequence[StepPoint], flat: int) -> tuple[float, int, tuple[float, float, float]]:
    rows = [(1, max(step.query_tokens - flat, 0), step.context_tokens) for step in steps]
    base, token, context = _least_squares(rows, [step.seconds for step in steps])
    predicted = [base + token * row[1] + context * row[2] for row in rows]
    error = sum((p / step.seconds - 1) ** 2 for p, step in zip(predicted, steps, strict=True))
    return error, flat, (base, token, context)


def _least_squares(rows: Sequence[tuple[float, ...]], seconds: Sequence[float]) -> tuple[float, ...]:
    """Non-negative, by dropping what comes out negative; relative errors."""
    if not rows:
        return (0.0, 0.0)
    matrix = np.array(rows, dtype=float) / np.array(seconds)[:, None]
    kept = list(range(matrix.shape[1]))
    solution = np.zeros(matrix.shape[1])
    while kept:
        found = np.linalg.lstsq(matrix[:, kept], np.ones(len(rows)), rcond=None)[0]
        if (found >= 0).all():
            solution[kept] = found
            break
        kept.pop(int(found.argmin()))
    return tuple(float(value) for value in solution)


PROFILES = {
    profile.name: profile
    for profile in (
        # InferCept's released constants, decoded: milliseconds in query tokens, 10 and 5 GB/s a GPU, S = 384.
        Profile("gptj-6b", 10e-3, 0.0463e-3, 0.0, 0.0459e-3),
        Profile("vicuna-13b-tp2", 15.4e-3, 0.0279e-3, 0.0, 0.0819e-3),
        # Derived from those two, because none are released for 13B on one GPU. A token costs one GPU twice what it
        # costs two. Reading weights at 1.6 TB/s (of 2.0) leaves 0.087 ms of the base for each of the 28 layers of 6B,
        # so 26 GB and 40 layers take 19.7 ms; two GPUs should then take 11.6 ms, and the 3.8 ms that are missing to
        # 15.4 are 80 all-reduces of 0.05 ms. The link is that of 6B: 800 KiB a token at 10 GB/s.
        Profile("vicuna-13b", 19.7e-3, 0.0558e-3, 0.0, 0.0819e-3),
        # Derived: 16 GB of weights and 128 KiB of KV a token at 4.0 TB/s (of 4.8), 16 GFLOP a token at 600 TFLOP/s,
        # 50 GB/s to the host.
        Profile("h200-8b", 4.5e-3, 0.027e-3, 0.033e-6, 2.62e-6, flat_tokens=64, saturation_tokens=512),
    )
}
"""By name of the setting."""
