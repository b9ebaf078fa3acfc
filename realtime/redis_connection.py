"""How every process connects to Redis: the same time-outs and the same patience everywhere."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import ExponentialBackoff
from redis.retry import Retry

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 2.0
RETRIES = 3
RETRY_S = 0.2

T = TypeVar("T")


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


async def patiently(action: Callable[[], Awaitable[T]]) -> T:
    """The action's value, tried again for as long as Redis is away. Raises what else the action raises."""
    while True:
        try:
            return await action()
        except (redis.ConnectionError, redis.TimeoutError) as error:
            log.warning("redis is away: %s", error)
            await asyncio.sleep(RETRY_S)
