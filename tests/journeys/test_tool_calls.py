"""Server-run tools through the whole system: forced, chosen among several, cut short, and as Redis shows them."""

from __future__ import annotations

import asyncio
import urllib.request
from typing import Any

import redis

from bench.realtime_client import RealtimeClient
from bench.server import Server
from launch.data_folder import DataFolder
from launch.embedded_redis import embedded_url

TOOLS = [{"type": "mcp", "server_label": "midstream", "require_approval": "never"}]
FORCED = {"type": "mcp", "server_label": "midstream", "name": "calculator"}
WAIT = {"type": "mcp", "server_label": "midstream", "name": "wait"}


async def test_a_forced_call_gives_the_exact_result(server: Server) -> None:
    async with RealtimeClient(server.websocket_url) as client:
        await client.configure(tools=TOOLS, midstream={"events": ["trace"]})
        await client.send("input_text_buffer.commit", text="What is 12 * 34?")
        answer = await client.answer(tool_choice=FORCED)
    assert answer.items[0]["output"] == "408"
    assert "408" in answer.text


async def test_a_required_call_is_one_of_the_session_s_tools(server: Server) -> None:
    async with RealtimeClient(server.websocket_url) as client:
        await client.configure(tools=TOOLS, midstream={"events": ["trace"]})
        await client.send("input_text_buffer.commit", text="What is 12 * 34?")
        answer = await client.answer(tool_choice="required")
    call = answer.items[0]
    assert call["type"] == "mcp_call"
    assert call["name"] in ("calculator", "wait")


async def test_a_call_cut_short_by_the_token_budget_is_incomplete_and_harms_nothing(server: Server) -> None:
    async with RealtimeClient(server.websocket_url) as client:
        await client.configure(tools=TOOLS, midstream={"events": ["trace"]})
        await client.send("input_text_buffer.commit", text="What is 12 * 34?")
        cut = await client.answer(tool_choice=FORCED, max_output_tokens=3)
        assert cut.response["status"] == "incomplete"
        assert cut.response["status_details"]["reason"] == "max_output_tokens"
        assert cut.items == []
        whole = await client.answer(tool_choice=FORCED)
        assert whole.items[0]["output"] == "408"


async def test_the_engine_is_told_of_a_call_and_the_client_of_its_kv(server: Server) -> None:
    async with RealtimeClient(server.websocket_url) as client:
        await client.configure(tools=TOOLS, midstream={"events": ["tool", "kv", "trace"]})
        await client.send("input_text_buffer.commit", text="Wait 2 seconds.")
        await client.answer(tool_choice=WAIT)
        events = [event for _, event in client.events]
    states = [event["state"] for event in events if event["type"] == "midstream.kv.state"]
    assert states[0] == "preserved"
    assert set(states) <= {"preserved", "swapped", "discarded", "restored"}
    async with asyncio.timeout(30):  # The node's heartbeat brings them.
        while not told(await asyncio.to_thread(metrics, server)):  # noqa: ASYNC110
            await asyncio.sleep(0.2)


def told(text: str) -> bool:
    """Whether the metrics know of a call from its start to its end, and of the memory held for it."""
    series = ("tool_hints_total", 'state="started"'), ("tool_hints_total", 'state="finished"')
    wanted = [*series, ("kv_token_seconds_total", 'cause="held"')]
    return all(any(name in line and label in line for line in text.splitlines()) for name, label in wanted)


def metrics(server: Server) -> str:
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=10) as reply:
        return str(reply.read().decode())


async def test_redis_shows_session_kv_and_tool_while_a_call_runs(server: Server) -> None:
    async with RealtimeClient(server.websocket_url) as client:
        session = client.events[0][1]["session"]["id"]
        await client.configure(tools=TOOLS)
        await client.send("input_text_buffer.commit", text="Wait 5 seconds.")
        await client.send("response.create", response={"tool_choice": WAIT})
        response = (await client.until("response.created"))["response"]["id"]
        await client.until("response.mcp_call.in_progress")
        with redis.Redis.from_url(embedded_url(DataFolder(server.data)), decode_responses=True) as store:
            record: Any = store.hgetall(f"ms:session:{session}")
            kv: Any = store.hgetall(f"ms:kv:{session}")
            calls = [store.hgetall(key) for key in store.scan_iter("ms:tool:*")]
        await client.send("response.cancel")
        await client.until("response.done")
    assert record["active_response"] == response
    # The engine's policy may have moved it already.
    assert (kv["decision"], kv["reason"]) in (("preserve", "tool"), ("swap", "policy"))
    assert kv["location"] in ("device", "partial", "host")
    assert int(kv["tokens"]) > 0
    assert [call["name"] for call in calls if call["session"] == session] == ["wait"]
