"""A client that comes back misses nothing and hears nothing twice; who is not its owner hears nothing at all."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from bench.server import Server
from tests.journeys.talk import Talk

pytestmark = pytest.mark.timeout(300)

STORY = "Tell me a story about a fox and a crow."


async def test_a_client_that_comes_back_hears_exactly_what_it_missed(server: Server) -> None:
    async with Talk(server.websocket_url) as watcher:
        await watcher.configure(max_output_tokens=16)
        async with Talk(server.websocket_url, session=watcher.session) as talk:
            await talk.until("midstream.session.resumed")
            await talk.ask(STORY)
            created = await talk.until("response.created")
            for _ in range(2):
                await talk.until("response.output_text.delta")
            await talk.disconnect()
            # The answer goes on for nobody, and to its end.
            await watcher.rest_of(await watcher.until("response.created"))
            last = talk.last_seq
            await talk.connect()
            resumed = await talk.until("midstream.session.resumed")
            assert resumed["from_event_id"] == last
            assert "snapshot" not in resumed
            await talk.rest_of(created)
            assert _numbered(talk) == _numbered(watcher)[-len(_numbered(talk)) :]
            await _a_normal_turn(talk)


async def test_a_client_that_comes_back_mid_answer_hears_the_rest_live(server: Server) -> None:
    async with Talk(server.websocket_url) as talk:
        undisturbed = await talk.say(STORY, max_output_tokens=32)
    async with Talk(server.websocket_url) as talk:
        await talk.ask(STORY, max_output_tokens=32)
        created = await talk.until("response.created")
        await talk.until("response.output_text.delta")
        talk.socket.transport.abort()
        await talk.wait_closed()
        await talk.connect()
        reply = await talk.rest_of(created)
        assert reply.text == undisturbed.text
        await _a_normal_turn(talk)


async def test_two_sockets_on_one_session_see_the_same_numbered_events(server: Server) -> None:
    async with Talk(server.websocket_url) as one:
        await one.configure(max_output_tokens=4)
        async with Talk(server.websocket_url, session=one.session) as two:
            await two.until("midstream.session.resumed")
            await one.send("input_text_buffer.append", text="Say ")
            await one.until("input_text_buffer.updated")
            await two.send("input_text_buffer.append", text="hi.", base_revision=1)
            late = await one.send("input_text_buffer.append", text="!", base_revision=1)
            error = await one.error(late)
            assert (error["code"], error["revision"]) == ("revision_conflict", 2)
            await two.send("input_text_buffer.commit")
            await one.until("input_text_buffer.committed")
            await one.send("response.create")
            for talk in (one, two):
                await talk.reply()
            both = [_numbered(one), _numbered(two)]
            assert both[0][-len(both[1]) :] == both[1]
            # The refused edit concerns one socket only.
            assert "error" not in [event["type"] for event in two.events]
            await _a_normal_turn(one)
            two_heard = await two.reply()
            assert two_heard.response["status"] in ("completed", "incomplete")


async def test_who_comes_without_a_last_event_gets_a_snapshot(server: Server) -> None:
    async with Talk(server.websocket_url) as one:
        reply = await one.say("Say hi.", max_output_tokens=4)
        await one.ask(STORY, max_output_tokens=32)
        created = await one.until("response.created")
        await one.until("response.output_text.delta")
        async with Talk(server.websocket_url, session=one.session) as two:
            snapshot = (await two.until("midstream.session.resumed"))["snapshot"]
            assert [item["role"] for item in snapshot["items"]] == ["user", "assistant", "user"]
            assert snapshot["items"][1]["content"][0]["text"] == reply.text
            assert snapshot["response"]["id"] == created["response"]["id"]
            done = (await two.until("response.done"))["response"]
            heard = "".join(event.get("delta", "") for event in two.events)
            assert snapshot["response"]["text"] + heard == done["output"][0]["content"][0]["text"]


@pytest.mark.parametrize("last", [10**14, 10_000])
async def test_a_last_event_that_never_was_gives_a_snapshot(server: Server, last: int) -> None:
    async with Talk(server.websocket_url) as talk:
        await _a_normal_turn(talk)
        await talk.disconnect()
        async with Talk(server.websocket_url, session=talk.session, last_event_id=str(last)) as again:
            assert len((await again.until("midstream.session.resumed"))["snapshot"]["items"]) == 2
            await again.say("Say hi.", max_output_tokens=1)


async def test_an_unknown_session_and_one_of_somebody_else_look_the_same(server: Server) -> None:
    key = {"Authorization": "Bearer key-one"}
    async with connect(server.websocket_url, additional_headers=key) as owner:
        created = await _json(owner)
        await owner.send('{"type": "session.update", "session": {"instructions": "secret"}}')
        await _json(owner)
        refusals = []
        for session, headers in (
            (created["session"]["id"], {"Authorization": "Bearer key-two"}),
            (created["session"]["id"], {}),
            ("sess_doesnotexist", key),
        ):
            async with connect(f"{server.websocket_url}?session_id={session}", additional_headers=headers) as stranger:
                refusals.append((await _json(stranger))["error"])
                with pytest.raises(ConnectionClosed):
                    await stranger.recv()
                assert stranger.close_code == 1008
    assert [refusal["code"] for refusal in refusals] == ["session_expired"] * 3
    assert len({refusal["message"] for refusal in refusals}) == 1


@pytest.mark.parametrize(
    "query", ["session_id=../../x", "session_id=sess_%00", "session_id=sess_x&last_event_id=-1", "last_event_id=3"]
)
async def test_a_malformed_resumption_is_refused(server: Server, query: str) -> None:
    async with connect(f"{server.websocket_url}?{query}") as socket:
        event = await _json(socket)
        assert event["error"]["code"] in ("invalid_value", "missing_required_parameter")
        with pytest.raises(ConnectionClosed):
            await socket.recv()
        assert socket.close_code == 1008


async def _json(socket: Any) -> dict[str, Any]:
    event: dict[str, Any] = json.loads(await asyncio.wait_for(socket.recv(), 60))
    return event


def _numbered(talk: Talk) -> list[tuple[int, str, str]]:
    return [(event["seq"], event["event_id"], event["type"]) for event in talk.events if "seq" in event]


async def _a_normal_turn(talk: Talk) -> None:
    reply = await talk.say("Say hi.", max_output_tokens=1)
    assert reply.status in ("completed", "incomplete"), reply.response
    talk.check()
