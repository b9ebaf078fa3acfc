"""The official SDK's realtime client, unmodified."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai

from realtime.messages import Attach, ClientEvent
from tests.web.conftest import LIMIT_S, Node, Running, Serve


async def test_the_sdk_connects_sends_and_receives(server: Running, node: Node) -> None:
    client = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="any")
    async with asyncio.timeout(LIMIT_S), client.realtime.connect(model="tiny") as connection:
        created = await connection.recv()
        assert created.type == "session.created"
        assert created.session.model == "tiny"  # type: ignore[union-attr]
        (attach,) = await node.receive(Attach)
        extension: Any = {"type": "input_text_buffer.append", "text": "Hi"}
        await connection.send(extension)
        (event,) = await node.receive(ClientEvent)
        assert json.loads(bytes(event.event)) == extension
        delta = {"type": "response.output_text.delta", "event_id": "e", "response_id": "r", "item_id": "i",
                 "output_index": 0, "content_index": 0, "delta": "Hello"}  # fmt: skip
        await node.deliver(attach.web, attach.connection, delta, seq=1)
        received = await connection.recv()
        assert (received.type, received.delta) == ("response.output_text.delta", "Hello")  # type: ignore[union-attr]
    await client.close()


async def test_a_configured_key_names_the_owner(serve: Serve, node: Node) -> None:
    async with serve(api_keys=["secret"]) as server:
        client = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="secret")
        async with asyncio.timeout(LIMIT_S), client.realtime.connect(model="default") as connection:
            assert (await connection.recv()).type == "session.created"
        await client.close()
