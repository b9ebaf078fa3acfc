"""How long a step takes, learned from the steps that ran, per model:
seconds = base + per token * tokens + per context token * KV read."""

from __future__ import annotations

_DECAY = 0.97
_OUTLIER = 3.0
_SWEEPS = 3
_PRIOR_BASE_S = 0.03
_PRIOR_TOKEN_S = _PRIOR_BASE_S / 32
_LEAST_BASE_S = 1e-6
_MOST_TOKENS_PER_BASE = 8192


class _Fit:
    """Least squares with forgetting, for noise that grows with the time; it starts from two imagined steps.

    The normal equations are solved by a few sweeps over the coefficients (Gauss-Seidel) that start from the last
    solution and end at the floors. So what recent steps say nothing about, as the time of a token while all steps are
    equal, stays what it was.
    """

    def __init__(self) -> None:
        self.coefficients = (_PRIOR_BASE_S, _PRIOR_TOKEN_S, 0.0)
        self._sums = [0.0] * 9
        for tokens in (1, 64):
            self.add(tokens, 0, _PRIOR_BASE_S + _PRIOR_TOKEN_S * tokens)

    def add(self, tokens: int, context_tokens: int, seconds: float) -> None:
        base, per_token, per_context_token = self.coefficients
        predicted = base + per_token * tokens + per_context_token * context_tokens
        # A delay from outside teaches little; a lasting one is followed step by step.
        seconds = min(seconds, _OUTLIER * predicted)
        w, x, z, y = 1 / predicted, tokens / predicted, context_tokens / predicted, seconds
        new = (w, x, z, x * tokens, x * context_tokens, z * context_tokens, w * y, x * y, z * y)
        self._sums = [old * _DECAY + added for old, added in zip(self._sums, new, strict=True)]
        for _ in range(_SWEEPS):
            self._sweep()

    def _sweep(self) -> None:
        """More work never takes less time, and an empty step is not free."""
        w, wx, wz, wxx, wxz, wzz, wy, wxy, wzy = self._sums
        _, per_token, per_context_token = self.coefficients
        base = max((wy - wx * per_token - wz * per_context_token) / w, _LEAST_BASE_S)
        per_token = max((wxy - wx * base - wxz * per_context_token) / wxx, base / _MOST_TOKENS_PER_BASE)
        if wzz > 0:
            per_context_token = max((wzy - wz * base - wxz * per_token) / wzz, 0.0)
        self.coefficients = (base, per_token, per_context_token)


class StepTime:
    """Seconds of a step by its tokens and by `context_tokens`, the sum of its sequences' lengths."""

    def __init__(self) -> None:
        self._fits: dict[int, _Fit] = {}
        self._prior = _Fit()

    def learn(self, model: int, tokens: int, context_tokens: int, seconds: float) -> None:
        """One step of `model` computed `tokens` tokens over `context_tokens` in `seconds`."""
        if tokens > 0 and seconds > 0:
            self._fits.setdefault(model, _Fit()).add(tokens, context_tokens, seconds)

    def predict(self, model: int, tokens: int, context_tokens: int = 0) -> float:
        """Seconds of a step of `model`."""
        base, per_token, per_context_token = self._coefficients(model)
        return base + per_token * tokens + per_context_token * context_tokens

    def extra(self, model: int, tokens: int, context_tokens: int = 0, *, joins: bool) -> float:
        """Seconds that `tokens` more tokens add to a step: `joins` when it computes something of `model` anyway."""
        base = self._coefficients(model)[0]
        return self.predict(model, tokens, context_tokens) - (base if joins else 0.0)

    def tokens_within(self, model: int, seconds: float, context_tokens: int = 0, *, joins: bool) -> int:
        """The largest number of tokens for which `extra` is at most `seconds`."""
        left = seconds - self.extra(model, 0, context_tokens, joins=joins)
        return max(int(left / self._coefficients(model)[1] + 1e-6), 0)

    def _coefficients(self, model: int) -> tuple[float, float, float]:
        return self._fits.get(model, self._prior).coefficients
