"""How long a step takes, learned from the steps that ran: seconds = base + slope * tokens, per model."""

from __future__ import annotations

from dataclasses import dataclass

_DECAY = 0.98
_OUTLIER = 3.0
_PRIOR_BASE_S = 0.03
_PRIOR_SLOPE_S = _PRIOR_BASE_S / 32


@dataclass(slots=True)
class _Fit:
    """Exponentially weighted least squares; it starts from two imagined steps of the prior."""

    weight: float = 2.0
    x: float = 1.0 + 64.0
    y: float = 2 * _PRIOR_BASE_S + 65 * _PRIOR_SLOPE_S
    xx: float = 1.0 + 64.0**2
    xy: float = _PRIOR_BASE_S + _PRIOR_SLOPE_S + 64 * (_PRIOR_BASE_S + 64 * _PRIOR_SLOPE_S)

    def add(self, x: float, y: float) -> None:
        self.weight = self.weight * _DECAY + 1
        self.x = self.x * _DECAY + x
        self.y = self.y * _DECAY + y
        self.xx = self.xx * _DECAY + x * x
        self.xy = self.xy * _DECAY + x * y

    def solve(self) -> tuple[float, float]:
        mean_x, mean_y = self.x / self.weight, self.y / self.weight
        spread = self.xx / self.weight - mean_x**2
        slope = (self.xy / self.weight - mean_x * mean_y) / spread if spread > 1e-9 else 0.0
        # Neither may vanish: more tokens never are faster, and an empty step is not free.
        slope = min(max(slope, 0.02 * mean_y / max(mean_x, 1.0)), mean_y / max(mean_x, 1.0))
        return max(mean_y - slope * mean_x, 0.02 * mean_y), slope


class StepTime:
    """Seconds of a step by its number of tokens."""

    def __init__(self) -> None:
        self._fits: dict[int, _Fit] = {}
        self._solved: dict[int, tuple[float, float]] = {}

    def learn(self, model: int, tokens: int, seconds: float) -> None:
        """One step of `model` computed `tokens` tokens in `seconds`. A delay from outside teaches little."""
        if tokens <= 0 or seconds <= 0:
            return
        fit = self._fits.setdefault(model, _Fit())
        fit.add(tokens, min(seconds, _OUTLIER * self.predict(model, tokens)))
        self._solved[model] = fit.solve()

    def predict(self, model: int, tokens: int) -> float:
        """Seconds of a step of `model` that computes `tokens` tokens."""
        base, slope = self._solved.get(model, (_PRIOR_BASE_S, _PRIOR_SLOPE_S))
        return base + slope * tokens

    def tokens_within(self, model: int, seconds: float) -> int:
        """How many tokens, added to a step of `model`, lengthen it by at most `seconds`."""
        _, slope = self._solved.get(model, (_PRIOR_BASE_S, _PRIOR_SLOPE_S))
        return max(int(seconds / slope), 0)
