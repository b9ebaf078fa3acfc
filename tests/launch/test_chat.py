from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve

from launch.chat import Conversation, chat, realtime_url, session_update

LIMIT_S = 20
ANSWER: list[dict[str, Any]] = [
    {"type": "response.created", "response": {"status": "in_progress"}},
    {"type": "response.mcp_call_arguments.done", "arguments": '{"expression": "6*7"}'},
    {"type": "midstream.tool.progress", "item_id": "i", "progress": 1, "message": "half done"},
    {
        "type": "response.output_item.done",
        "item": {"type": "mcp_call", "name": "calculator", "output": "42", "error": None},
    },
    {"type": "response.output_text.delta", "delta": "It is "},
    {"type": "response.output_text.delta", "delta": "42."},
    {
        "type": "response.done",
        "response": {
            "status": "completed",
            "usage": {"input_tokens": 20, "input_token_details": {"cached_tokens": 18}},
        },
    },
]


class Server:
    """Records what the client sends and answers each `response.create` with `answer`."""

    def __init__(self, answer: list[dict[str, Any]]) -> None:
        self.answer = answer
        self.received: list[dict[str, Any]] = []
        self._more = asyncio.Condition()

    async def handle(self, connection: ServerConnection) -> None:
        async for message in connection:
            event = json.loads(message)
            async with self._more:
                self.received.append(event)
                self._more.notify_all()
            if event["type"] == "response.create":
                for reply in self.answer:
                    await connection.send(json.dumps(reply))

    async def received_count(self, count: int) -> None:
        async with self._more:
            await self._more.wait_for(lambda: len(self.received) >= count)


@asynccontextmanager
async def conversation(answer: list[dict[str, Any]]) -> AsyncIterator[tuple[Conversation, Server]]:
    server = Server(answer)
    async with serve(server.handle, "127.0.0.1", 0) as listening, asyncio.timeout(LIMIT_S):
        port = listening.sockets[0].getsockname()[1]
        async with connect(f"ws://127.0.0.1:{port}/v1/realtime") as connection:
            client = Conversation(connection)
            tasks = [asyncio.create_task(client.receive()), asyncio.create_task(client.stream_edits())]
            yield client, server
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def test_the_newest_text_of_quick_edits_is_sent_before_enter() -> None:
    async with conversation(ANSWER) as (client, server):
        for text in ("W", "Wh", "Wha", "What"):
            client.edit(text)
        await server.received_count(1)
    assert server.received == [{"type": "input_text_buffer.replace", "text": "What"}]


async def test_a_turn_commits_the_text_and_asks_for_an_answer() -> None:
    async with conversation(ANSWER) as (client, server):
        client.edit("What is 6*7")
        await client.turn("What is 6*7?")
    assert [event["type"] for event in server.received] == ["input_text_buffer.commit", "response.create"]
    assert server.received[0]["text"] == "What is 6*7?"


async def test_the_answer_its_tool_call_and_its_latency_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    async with conversation(ANSWER) as (client, _):
        await client.turn("What is 6*7?")
    shown = capsys.readouterr().out
    assert "It is 42.\n" in shown
    assert '[tool] {"expression": "6*7"}' in shown
    assert "half done" in shown
    assert "[calculator] 42" in shown
    assert "ms after Enter, 18 of 20 tokens were ready" in shown


async def test_a_refused_turn_ends_with_the_servers_reason(capsys: pytest.CaptureFixture[str]) -> None:
    refusal = {"type": "error", "error": {"message": "engine is busy", "event_id": "create"}}
    async with conversation([refusal]) as (client, _):
        await client.turn("hello")
    assert "[error] engine is busy" in capsys.readouterr().out


async def test_an_interrupt_cancels_the_answer() -> None:
    async with conversation([]) as (client, server):
        turn = asyncio.create_task(client.turn("hello"))
        await server.received_count(2)
        client.interrupt()
        await server.received_count(3)
        turn.cancel()
    assert server.received[-1] == {"type": "response.cancel"}


def test_a_server_that_is_not_there_is_a_clear_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert chat("http://127.0.0.1:9", "", "", []) == 1
    assert "No connection with http://127.0.0.1:9" in capsys.readouterr().out


def test_http_addresses_become_websocket_addresses() -> None:
    assert realtime_url("http://127.0.0.1:8080") == "ws://127.0.0.1:8080/v1/realtime"
    assert realtime_url("https://chat.example.org/midstream/") == "wss://chat.example.org/midstream/v1/realtime"
    with pytest.raises(ValueError, match="not an http address"):
        realtime_url("chat.example.org")


def test_tools_are_offered_without_approval() -> None:
    session = session_update("notes", ["calculator"])["session"]
    assert session["midstream"]["strategy"] == "notes"
    assert session["tools"] == [
        {
            "type": "mcp",
            "server_label": "midstream",
            "allowed_tools": ["calculator"],
            "require_approval": "never",
        }
    ]
