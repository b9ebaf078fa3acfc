from __future__ import annotations

import pytest

from realtime.tool_queue import broker_url


@pytest.mark.parametrize(
    ("redis_url", "broker"),
    [
        ("redis://127.0.0.1:6379", "redis://127.0.0.1:6379/1"),
        ("redis://127.0.0.1:6379/2", "redis://127.0.0.1:6379/3"),
        ("redis://:secret@redis:6379/0", "redis://:secret@redis:6379/1"),
        ("rediss://redis:6380/0?ssl_cert_reqs=required", "rediss://redis:6380/1?ssl_cert_reqs=required"),
        ("unix:///run/redis.sock", "redis+socket:///run/redis.sock?virtual_host=1"),
        ("unix:///run/redis.sock?db=4", "redis+socket:///run/redis.sock?virtual_host=5"),
    ],
)
def test_the_broker_is_the_next_database(redis_url: str, broker: str) -> None:
    assert broker_url(redis_url) == broker


def test_another_kind_of_url_is_refused() -> None:
    with pytest.raises(ValueError, match="not a Redis URL"):
        broker_url("amqp://localhost")
