from __future__ import annotations

import pytest
import redis

from realtime import redis_connection
from realtime.redis_connection import patiently


async def test_what_fails_for_want_of_redis_is_tried_again_and_nothing_else_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(redis_connection, "RETRY_S", 0.0)
    outcomes: list[Exception | str] = [redis.ConnectionError("away"), redis.TimeoutError("slow"), "here"]

    async def action() -> str:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    assert await patiently(action) == "here"
    outcomes.append(redis.ResponseError("refused"))
    with pytest.raises(redis.ResponseError):
        await patiently(action)
