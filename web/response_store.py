"""Finished responses, for as long as their clients may come back to them.

Each keeps only what its own request brought; `previous` leads to what was before. Going on from a response makes all
that it goes back to last for another retention time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import redis
import redis.asyncio

from realtime import keys
from realtime.conversation import Item
from web.errors import ApiError
from web.response_items import output_items
from web.settings import WebSettings

MAX_CHAIN = 512


class StoredResponse(msgspec.Struct):
    """`response` is the whole object; `items` are what the request brought, without its instructions."""

    owner: str
    response: dict[str, Any]
    items: list[Item]
    previous: str | None


_decoder = msgspec.json.Decoder(StoredResponse)


class ResponseStore:
    """All methods raise `ApiError` 503 when Redis does not answer."""

    def __init__(self, client: redis.asyncio.Redis, settings: WebSettings) -> None:
        self._redis = client
        self._retention_s = settings.session_retention_s
        self._timeout_s = settings.redis_timeout_s

    async def put(self, stored: StoredResponse) -> None:
        async with self._patience():
            await self._redis.set(
                keys.response(stored.response["id"]), msgspec.json.encode(stored), ex=self._retention_s
            )

    async def get(self, id: str, owner: str) -> StoredResponse:
        """Raises `ApiError` 404 for one that does not exist, any more, or for this owner."""
        found = await self._find(id, owner)
        if found is None:
            raise ApiError(404, "response_not_found", f"there is no response {id[:64]!r}", "response_id")
        return found

    async def delete(self, id: str, owner: str) -> None:
        """Raises as `get` does."""
        await self.get(id, owner)
        async with self._patience():
            await self._redis.delete(keys.response(id))

    async def conversation(self, last: str | None, owner: str) -> list[Item]:
        """What was said up to and with the response `last`.

        Raises `ApiError` 400 previous_response_not_found when a part of it is gone, and context_length_exceeded for
        more than `MAX_CHAIN` responses.
        """
        chain: list[StoredResponse] = []
        while last is not None:
            found = await self._find(last, owner)
            if found is None:
                text = f"there is no response {last[:64]!r}; it was not stored, or its time is over"
                raise ApiError(400, "previous_response_not_found", text, "previous_response_id")
            chain.append(found)
            if len(chain) > MAX_CHAIN:
                text = f"the conversation has more than {MAX_CHAIN} responses"
                raise ApiError(400, "context_length_exceeded", text, "previous_response_id")
            last = found.previous
        items: list[Item] = []
        for stored in reversed(chain):
            items += [*stored.items, *output_items(stored.response["output"])]
        return items

    async def _find(self, id: str, owner: str) -> StoredResponse | None:
        async with self._patience():
            data: Any = await self._redis.getex(keys.response(id), ex=self._retention_s)
        found = _decoder.decode(data) if data is not None else None
        return found if found is not None and found.owner == owner else None

    @asynccontextmanager
    async def _patience(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._timeout_s):
                yield
        except (redis.RedisError, OSError, TimeoutError):
            raise ApiError(503, "store_unavailable", "stored responses are out of reach; try again") from None
