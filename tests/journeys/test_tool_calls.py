"""Server-run tools through the whole system: forced, chosen among several, and cut short."""

from __future__ import annotations

from bench.realtime_client import RealtimeClient
from bench.server import Server

TOOLS = [{"type": "mcp", "server_label": "midstream", "require_approval": "never"}]
FORCED = {"type": "mcp", "server_label": "midstream", "name": "calculator"}


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
