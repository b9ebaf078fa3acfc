"""How every process connects to Redis: the same time-outs and the same patience everywhere."""

from __future__ import annotations

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import ExponentialBackoff
from redis.retry import Retry

CONNECT_TIMEOUT_S = 2.0
RETRIES = 3


def connect(url: str) -> redis.asyncio.Redis:
    """Async client returning bytes. Commands are retried over a reconnect, then raise `redis.RedisError`."""
    return redis.asyncio.Redis.from_url(
        url,
        socket_connect_timeout=CONNECT_TIMEOUT_S,
        retry=AsyncRetry(ExponentialBackoff(cap=0.5, base=0.05), RETRIES),
        retry_on_error=[redis.ConnectionError, redis.TimeoutError],
    )


def connect_sync(url: str) -> redis.Redis:
    """Blocking client for the workers and the launcher."""
    return redis.Redis.from_url(
        url,
        socket_connect_timeout=CONNECT_TIMEOUT_S,
        retry=Retry(ExponentialBackoff(cap=0.5, base=0.05), RETRIES),
        retry_on_error=[redis.ConnectionError, redis.TimeoutError],
    )
