"""Token buckets: so many tokens a second, and at most so many at once."""

from __future__ import annotations


class TokenBucket:
    """`rate` tokens a second; holds at most `burst`. May be overdrawn by one charge, and then has to recover."""

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._rate = rate
        self._burst = burst
        self._level = burst
        self._at = now

    def available(self, now: float) -> int:
        """Whole tokens that may be used at `now`."""
        self._refill(now)
        return max(int(self._level), 0)

    def charge(self, tokens: int, now: float) -> None:
        """Takes `tokens` out."""
        self._refill(now)
        self._level -= tokens

    def wait(self, now: float) -> float:
        """Seconds until one token is there."""
        self._refill(now)
        return max((1 - self._level) / self._rate, 0.0)

    def is_full(self, now: float) -> bool:
        """Whether it may be forgotten: a new one would be the same."""
        self._refill(now)
        return self._level >= self._burst

    def _refill(self, now: float) -> None:
        self._level = min(self._level + max(now - self._at, 0.0) * self._rate, self._burst)
        self._at = max(self._at, now)


class RateLimits:
    """Tokens a second over all and of each payer; a rate of 0 is no limit. The burst is one second's worth."""

    def __init__(self, total: float, per_payer: float, now: float) -> None:
        self._per_payer = per_payer
        self._total = TokenBucket(total, total, now) if total else None
        self._payers: dict[int, TokenBucket] = {}

    def available(self, payer: int, now: float) -> int | None:
        """How many tokens `payer` may use at `now`; None: any number."""
        found = [bucket.available(now) for bucket in self._buckets(payer)]
        return min(found) if found else None

    def charge(self, payer: int, tokens: int, now: float) -> None:
        """`payer` uses `tokens`."""
        if self._total is not None:
            self._total.charge(tokens, now)
        if self._per_payer and payer:
            bucket = self._payers.setdefault(payer, TokenBucket(self._per_payer, self._per_payer, now))
            bucket.charge(tokens, now)

    def wait(self, payer: int, now: float) -> float:
        """Seconds until `payer` may use a token."""
        return max((bucket.wait(now) for bucket in self._buckets(payer)), default=0.0)

    def forget_full(self, now: float) -> None:
        """Drops the buckets that make no difference any more."""
        self._payers = {payer: bucket for payer, bucket in self._payers.items() if not bucket.is_full(now)}

    def _buckets(self, payer: int) -> list[TokenBucket]:
        payers = self._payers.get(payer)
        return [bucket for bucket in (self._total, payers) if bucket is not None]

    @property
    def payers(self) -> int:
        """How many payers have a bucket now."""
        return len(self._payers)
