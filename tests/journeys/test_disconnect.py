"""A caller that goes away stops the engine: while the answer comes, and while its prompt is still computed."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import msgspec
import pytest
import redis

from bench.server import Server
from engine.model.loader import prepare_model
from engine.settings import EngineSettings
from launch.data_folder import DataFolder
from launch.embedded_redis import embedded_url
from realtime.chat_format import ChatFormat

LIMIT_S = 60.0
POLL_S = 0.1
PROMPT_WORDS = 250
ANSWER_TOKENS = 96


@pytest.fixture
def store(server: Server) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(embedded_url(DataFolder(server.data)), decode_responses=True) as client:
        yield client


def node_of(store: redis.Redis) -> str:
    names: Any = store.zrange("ms:nodes", 0, -1)
    return str(names[0])


def stats(store: redis.Redis) -> dict[str, float]:
    """The engine's gauges and counters as the node last told them."""
    node: Any = store.get(f"ms:node:{node_of(store)}")
    found: dict[str, float] = msgspec.json.decode(node)["stats"]
    return found


def calls_taken(store: redis.Redis) -> int:
    """How many messages the node has taken out of its inbox and obeyed."""
    groups: Any = store.xinfo_groups(f"ms:node:{node_of(store)}:inbox")
    return sum(int(group["entries-read"]) - int(group["pending"]) for group in groups)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not condition():  # noqa: ASYNC110 - what is waited for happens in other processes
            await asyncio.sleep(POLL_S)


async def at_rest(store: redis.Redis) -> dict[str, float]:
    """The counters when nothing runs and nothing waits, as the engine tells them from now on."""
    asked_at = time.time()

    def is_resting() -> bool:
        now = stats(store)
        return now["at"] > asked_at and not now["running"] and not now["waiting"] and not now["blocks_running"]

    await until(is_resting)
    return stats(store)


def endless(content: str) -> dict[str, Any]:
    """A request whose answer has no end but the token limit."""
    folder = prepare_model("default", EngineSettings(model="default").model_cache, lambda stage, fraction: None)
    bias = {str(token): -100 for token in ChatFormat.from_folder(folder).stop_token_ids}
    return {"model": "default", "messages": [{"role": "user", "content": content}], "logit_bias": bias}


async def test_disconnect_while_the_answer_streams_frees_the_slot(server: Server, store: redis.Redis) -> None:
    before = await at_rest(store)
    async with httpx.AsyncClient(base_url=server.url, timeout=LIMIT_S) as client:
        body = {**endless("Count."), "stream": True, "n": 2}
        async with client.stream("POST", "/v1/chat/completions", json=body) as response:
            pieces = 0
            async for line in response.aiter_lines():
                pieces += '"content":' in line and '"content":""' not in line
                if pieces == 6:
                    break
    after = await at_rest(store)
    assert after["contexts"] == before["contexts"]
    assert 0 < after["decode_tokens"] - before["decode_tokens"] < 2 * ANSWER_TOKENS


async def test_disconnect_during_prefill_frees_the_slot_before_a_token_is_made(
    server: Server, store: redis.Redis
) -> None:
    before, taken = await at_rest(store), calls_taken(store)
    content = " ".join(uuid.uuid4().hex[:8] for _ in range(PROMPT_WORDS))
    async with httpx.AsyncClient(base_url=server.url, timeout=LIMIT_S) as client:
        asking = asyncio.create_task(client.post("/v1/chat/completions", json=endless(content)))
        await until(lambda: calls_taken(store) > taken)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    after = await at_rest(store)
    assert after["contexts"] == before["contexts"]
    # The step that was under way may have been the one that ends the prompt.
    assert after["decode_tokens"] - before["decode_tokens"] <= 1
