"""Each of the five processes is killed at each stage of a turn: the client always hears the end of it, and the next
turn works. Killing the engine costs time only: the answer is the one of an uninterrupted run, to the last character."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.journeys.talk import WAIT_TOOL, Talk
from tests.journeys.whole_server import PROCESSES, WholeServer, whole_server

pytestmark = pytest.mark.timeout(400)

QUESTION = "Tell me a story about a fox and a crow."
TYPED = ("What is the capital ", "of France? ", "Answer in one short sentence.")
TOKENS = 24


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeServer]:
    with whole_server(tmp_path_factory.mktemp("kill")) as server:
        yield server


@pytest.fixture(autouse=True)
def _whole_before_and_at_rest_after(server: WholeServer) -> Iterator[None]:
    server.await_whole()
    yield
    server.await_rest()


@pytest.mark.parametrize("victim", PROCESSES)
async def test_killed_while_an_answer_streams(server: WholeServer, victim: str) -> None:
    async with Talk(server.url) as talk:
        undisturbed = await talk.say(QUESTION, max_output_tokens=TOKENS)
    async with Talk(server.url) as talk:
        await talk.ask(QUESTION, max_output_tokens=TOKENS)
        created = await talk.until("response.created")
        for _ in range(3):
            await talk.until("response.output_text.delta")
        server.kill(victim)
        reply = await talk.rest_of(created)

        said = reply.response["output"][0]["content"][0]["text"]
        assert reply.text == said
        if victim == "host":
            assert reply.status == "failed"
            assert undisturbed.text.startswith(said)
        else:
            assert reply.status == undisturbed.status
            assert said == undisturbed.text
        await _next_turn_works(talk)


@pytest.mark.parametrize("victim", PROCESSES)
async def test_killed_while_a_tool_runs(server: WholeServer, victim: str) -> None:
    known = server.tool_runs()
    async with Talk(server.url) as talk:
        await talk.ask("Wait 3 seconds.", max_output_tokens=TOKENS, **WAIT_TOOL)
        created = await talk.until("response.created")
        await talk.until("response.mcp_call.in_progress")
        server.await_tool_start(known)
        server.kill(victim)
        reply = await talk.rest_of(created)

        call = reply.response["output"][0]
        assert call["type"] == "mcp_call"
        if victim == "host":
            assert reply.status == "failed"
            assert call["error"]["type"] == "tool_execution_error"
        else:
            assert reply.status in ("completed", "incomplete")
            assert call["output"] == "Waited 3 s."
        await _next_turn_works(talk)
    server.await_rest()
    (call_id,) = server.tool_runs().keys() - known.keys()
    state, runs = server.tool_runs()[call_id]
    assert state == "done"
    assert runs == (2 if victim == "worker" else 1)


async def test_a_host_that_starts_anew_claims_no_kv_of_its_predecessor(server: WholeServer) -> None:
    async with Talk(server.url) as talk:
        await talk.say("Say hi.", max_output_tokens=1)
    server.await_rest()
    assert talk.session in server.kv_sessions()
    server.kill("host")
    server.await_whole()
    async with Talk(server.url) as other:
        await other.say("Say hi.", max_output_tokens=1)
    assert talk.session not in server.kv_sessions()


@pytest.mark.parametrize("victim", PROCESSES)
async def test_killed_while_text_is_typed(server: WholeServer, victim: str) -> None:
    async with Talk(server.url) as talk:
        await talk.configure(midstream={"events": ["prefill"]})
        await talk.send("input_text_buffer.append", text=TYPED[0])
        await talk.until("midstream.prefill")
        server.kill(victim)
        if victim == "web":
            await talk.wait_closed()
            await talk.connect()
        await talk.send("input_text_buffer.append", text=TYPED[1])
        reply = await talk.say_patiently("".join(TYPED), max_output_tokens=TOKENS)
        await _next_turn_works(talk)
    async with Talk(server.url) as talk:
        undisturbed = await talk.say("".join(TYPED), max_output_tokens=TOKENS)
    assert reply.text == undisturbed.text


async def _next_turn_works(talk: Talk) -> None:
    reply = await talk.say_patiently("Say hi.", max_output_tokens=4)
    assert reply.status in ("completed", "incomplete")
    assert reply.text
    talk.check()
