"""Token buckets: so many tokens a second, and at most so many at once."""

from __future__ import annotations

_ROUNDING = 1e-3


class TokenBucket:
    """`rate` tokens a second; holds at most `burst`, and at least one. May be overdrawn, and then has to recover."""

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._rate = rate
        self._burst = max(burst, 1.0)
        self._level = self._burst
        self._at = now

    def available(self, now: float) -> int:
        """Whole tokens that may be used at `now`."""
        self._refill(now)
        # Who slept for as long as `wait` said finds a token, whatever the clock rounded.
        return max(int(self._level + _ROUNDING), 0)

    def charge(self, tokens: int, now: float) -> None:
        """Takes `tokens` out."""
        self._refill(now)
        self._level -= tokens

    def wait(self, now: float) -> float:
        """Seconds until one token is there."""
        return 0.0 if self.available(now) else (1 - self._level) / self._rate

    def is_full(self, now: float) -> bool:
        """Whether it may be forgotten: a new one would be the same."""
        self._refill(now)
        return self._level >= self._burst

    def _refill(self, now: float) -> None:
        self._level = min(self._level + max(now - self._at, 0.0) * self._rate, self._burst)
        self._at = max(self._at, now)


class RateLimits:
    """Tokens a second over all and of each payer; a rate of 0 is no limit, and payer 0 has none of its own. The burst
    is one second's worth."""

    def __init__(self, total: float, per_payer: float, now: float) -> None:
        self._per_payer = per_payer
        self._total = TokenBucket(total, total, now) if total else None
        self._payers: dict[int, TokenBucket] = {}

    def available(self, payer: int, now: float) -> int | None:
        """How many tokens `payer` may use at `now`; None: any number."""
        found = [bucket.available(now) for bucket in self._buckets(payer, now)]
        return min(found) if found else None

    def charge(self, payer: int, tokens: int, now: float) -> None:
        """`payer` uses `tokens`."""
        for bucket in self._buckets(payer, now):
            bucket.charge(tokens, now)

    def wait(self, payer: int, now: float) -> float:
        """Seconds until `payer` may use a token."""
        return max((bucket.wait(now) for bucket in self._buckets(payer, now)), default=0.0)

    def forget_full(self, now: float) -> None:
        """Drops the buckets that make no difference any more."""
        self._payers = {payer: bucket for payer, bucket in self._payers.items() if not bucket.is_full(now)}

    @property
    def payers(self) -> int:
        """How many payers have a bucket now."""
        return len(self._payers)

    def _buckets(self, payer: int, now: float) -> list[TokenBucket]:
        buckets = [] if self._total is None else [self._total]
        if self._per_payer and payer:
            bucket = self._payers.get(payer)
            if bucket is None:
                bucket = self._payers[payer] = TokenBucket(self._per_payer, self._per_payer, now)
            buckets.append(bucket)
        return buckets
