"""Tool calls of drafts, before anything is sent, over an engine that follows a script."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import replace as changed
from pathlib import Path
from typing import Any

import pytest
import redis

from engine import messages as m
from realtime import keys
from realtime.chat_format import ChatFormat
from realtime.messages import ToolJob, ToolProgress, ToolResult
from realtime.tool_calls import CLOSE, OPEN
from realtime.tools import CALCULATOR, SERVER_TOOLS
from tests.realtime.running_host import LIMIT_S
from tests.realtime.scripted_engine import ScriptedHost, scripted_host

QUESTION = "How much is 7777 + 1?"
TOOLS = {"type": "mcp", "server_label": "midstream", "require_approval": "never"}
ANSWER = "It is 7778."

Events = list[dict[str, Any]]


def call(expression: str = "7777+1", tool: str = "calculator") -> str:
    return f"{OPEN}{json.dumps({'name': tool, 'arguments': {'expression': expression}})}{CLOSE}"


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not condition():  # noqa: ASYNC110 - part of it is in Redis
            await asyncio.sleep(0.002)


class Typist(ScriptedHost):
    """Has a worker's queue: `jobs` is all that was asked of the workers."""

    jobs: list[ToolJob]

    async def job(self, number: int) -> ToolJob:
        await until(lambda: len(self.jobs) >= number)
        return self.jobs[number - 1]

    async def finish(self, job: ToolJob, output: str = "7778", error: str = "") -> None:
        await self.post(ToolResult(job.call, job.attempt, output, error, 1.0, 2.0))

    async def type(self, text: str) -> None:
        await self.send("input_text_buffer.replace", text=text)

    async def send_it(self, text: str = QUESTION) -> None:
        await self.send("input_text_buffer.commit", text=text)
        await self.send("response.create")

    async def until_generated(self, times: int) -> None:
        await self.engine.until(lambda: len(self.engine.prompts) >= times)

    def posted(self) -> list[ToolJob]:
        return [job for job in self.jobs if job.name == "post"]

    def holds(self) -> list[m.Hold]:
        return self.engine.of_kind(m.Hold)


@pytest.fixture
async def typist(
    smol_format: ChatFormat,
    client: redis.Redis,
    redis_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Typist]:
    options: dict[str, Any] = {"draft_pause_s": 0.01, "settle_s": 0.005, "max_drafts": 20}
    monkeypatch.setitem(SERVER_TOOLS, "post", changed(CALCULATOR, name="post", speculative=False))
    async with scripted_host(smol_format, redis_url, tmp_path, **options) as host:
        typist = Typist(host.node, host.engine)
        typist.jobs = []

        async def take(job: ToolJob) -> None:
            typist.jobs.append(job)

        monkeypatch.setattr(host.node.tools._queue, "send", take)
        host.engine.prefills = True
        await typist.open_session()
        await typist.configure(tools=[TOOLS], midstream={"strategy": "draft", "events": ["draft", "turn", "tool"]})
        yield typist


def text_of(events: Events) -> str:
    return "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")


def outputs(events: Events) -> list[str | None]:
    return [
        event["item"]["output"]
        for event in events
        if event["type"] == "response.output_item.done" and event["item"]["type"] == "mcp_call"
    ]


async def test_a_draft_runs_its_call_and_answers_on_before_send(typist: Typist) -> None:
    typist.say(call())
    typist.say(ANSWER)
    await typist.type(QUESTION)
    tool = (await typist.events_until("midstream.draft.tool"))[-1]
    assert tool["name"] == "calculator"
    job = await typist.job(1)
    (hold,) = typist.holds()
    assert (hold.call, hold.tool, hold.reason) == (job.call, "calculator", "tool")
    await typist.finish(job)
    await typist.until_generated(2)
    sent = len(typist.engine.commands)
    await typist.send_it()
    events = await typist.events_until("response.done")
    assert outputs(events) == ["7778"]
    assert text_of(events) == ANSWER
    after = typist.engine.commands[sent:]
    assert not [command for command in after if isinstance(command, m.Generate | m.Resume | m.Hold)]
    assert len(typist.jobs) == 1
    fmt = typist.format
    assert events[-1]["response"]["usage"]["output_tokens"] == len(fmt.text(call())) + len(fmt.text(ANSWER))
    turn = (await typist.events_until("midstream.turn"))[-1]
    assert (turn["draft"], turn["draft_wasted_tokens"]) == ("promoted", 0)
    assert turn["draft_tokens"] == len(fmt.text(call())) + len(fmt.text(ANSWER))
    assert set(typist.engine.contexts) == {hold.context}


async def test_the_prompt_after_a_drafted_call_is_that_of_the_same_turn_without_drafts(typist: Typist) -> None:
    prompts = []
    for strategy in ("draft", "off"):
        before = len(typist.engine.prompts)
        await typist.open_session(strategy)
        await typist.configure(tools=[TOOLS], midstream={"strategy": strategy, "events": ["draft", "turn"]})
        typist.say(call())
        typist.say(ANSWER)
        jobs = len(typist.jobs)
        if strategy == "draft":
            await typist.type(QUESTION)
        else:
            await typist.send_it()
        await typist.finish(await typist.job(jobs + 1))
        await typist.until_generated(before + 2)
        if strategy == "draft":
            await typist.send_it()
        assert text_of(await typist.events_until("response.done")) == ANSWER
        prompts.append(typist.engine.prompts[before:])
    assert prompts[0] == prompts[1]


async def test_a_call_that_still_runs_at_send_is_taken_over(typist: Typist) -> None:
    typist.say(call())
    await typist.type(QUESTION)
    job = await typist.job(1)
    await typist.post(ToolProgress(job.call, 1, 0.25, 1.0, "a quarter"))
    await typist.post(ToolProgress(job.call, 1, 0.5, 1.0, "half"))
    await typist.send_it()
    progress = (await typist.events_until("midstream.tool.progress"))[-1]
    assert progress["message"] == "half"
    typist.say(ANSWER)
    await typist.finish(job)
    events = await typist.events_until("response.done")
    assert (outputs(events), text_of(events)) == (["7778"], ANSWER)
    assert len(typist.jobs) == 1
    assert {hold.call for hold in typist.holds()} == {job.call}


async def test_to_cancel_the_answer_cancels_a_call_that_was_taken_over(typist: Typist, client: redis.Redis) -> None:
    typist.say(call())
    await typist.type(QUESTION)
    job = await typist.job(1)
    await typist.send_it()
    await typist.events_until("response.mcp_call.in_progress")
    await typist.send("response.cancel")
    done = (await typist.events_until("response.done"))[-1]["response"]
    assert done["status"] == "cancelled"
    await until(lambda: client.hget(keys.tool(job.call), "cancel") == b"1")
    assert typist.node.tools.running == 0


async def test_a_call_that_failed_before_send_is_tried_anew(typist: Typist) -> None:
    typist.say(call())
    await typist.type(QUESTION)
    failed = await typist.job(1)
    await typist.finish(failed, error="no luck")
    await typist.engine.until(lambda: bool(typist.engine.of_kind(m.Resume)))
    await typist.send_it()
    again = await typist.job(2)
    assert (again.name, again.arguments) == (failed.name, failed.arguments)
    typist.say(ANSWER)
    await typist.finish(again)
    events = await typist.events_until("response.done")
    assert (outputs(events), text_of(events)) == (["7778"], ANSWER)


async def test_the_same_call_of_another_draft_or_of_an_answer_without_one_is_not_run_again(typist: Typist) -> None:
    typist.say(call())
    typist.say(ANSWER, None)
    await typist.type(QUESTION)
    await typist.finish(await typist.job(1))
    await typist.until_generated(2)
    typist.say(f"Well. {call('7777+1')}")
    typist.say(ANSWER, None)
    await typist.type(QUESTION + " Really?")
    await typist.until_generated(4)
    typist.say(call())
    typist.say(ANSWER)
    await typist.send_it("Another text.")
    events = await typist.events_until("response.done")
    assert (outputs(events), text_of(events)) == (["7778"], ANSWER)
    assert len(typist.jobs) == len(typist.holds()) == 1


async def test_another_call_at_send_runs_and_the_drafted_one_is_forgotten(typist: Typist, client: redis.Redis) -> None:
    typist.say(call("1+1"))
    typist.say(ANSWER, None)
    await typist.type(QUESTION)
    first = await typist.job(1)
    client.hset(keys.tool(first.call), "output", "2")
    await typist.finish(first, "2")
    await typist.until_generated(2)
    typist.say(call())
    typist.say(ANSWER)
    await typist.send_it("Another text.")
    await typist.finish(await typist.job(2))
    assert outputs(await typist.events_until("response.done")) == ["7778"]
    await until(lambda: client.hgetall(keys.tool(first.call)) == {b"cancel": b"1"})


async def test_a_call_with_side_effects_waits_for_send(typist: Typist) -> None:
    typist.say(call(tool="post"))
    await typist.type(QUESTION)
    await typist.until_generated(1)
    await typist.send_it()
    await typist.events_until("response.mcp_call.in_progress")
    assert [job.name for job in typist.jobs] == ["post"]
    typist.say(ANSWER)
    await typist.finish(typist.jobs[0])
    assert text_of(await typist.events_until("response.done")) == ANSWER


@pytest.mark.parametrize("setting", ["max_speculative_calls", "max_tool_calls"])
async def test_limits_of_the_node_hold_for_drafts(
    typist: Typist, setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(typist.node.settings, setting, 0)
    typist.say(call())
    await typist.type(QUESTION)
    await typist.until_generated(1)
    await typist.type(QUESTION + " Please.")
    await typist.events_until("midstream.draft.discarded")
    assert not typist.jobs


async def test_the_end_of_a_session_ends_its_calls(typist: Typist) -> None:
    typist.say(call())
    await typist.type(QUESTION)
    await typist.job(1)
    await typist.send("input_text_buffer.clear")
    await typist.events_until("midstream.draft.discarded")
    await typist.send_it("Never mind.")
    await typist.events_until("response.created")
    await typist.send("response.cancel")
    await typist.events_until("response.done")
    await until(lambda: not typist.node.tools.running)


@pytest.mark.parametrize("seed", range(12))
async def test_whatever_is_typed_and_sent_no_side_effect_comes_before_a_commit(typist: Typist, seed: int) -> None:
    """Random scripts: drafts that call this and that, edits, commits, cancels; results late, early or never."""
    rng = random.Random(seed)
    committed = 0
    for step in range(25):
        action = rng.choice(["type", "type", "type", "result", "clear", "send", "pause"])
        if action == "type":
            for _ in range(2):
                typist.say(
                    call(f"{rng.randrange(3)}+1", rng.choice(["calculator", "post"])), rng.choice(["stop", None])
                )
            await typist.type(f"Question {step}" + rng.choice(["?", ""]))
        elif action == "result" and typist.jobs:
            await typist.finish(rng.choice(typist.jobs))
        elif action == "clear":
            await typist.send("input_text_buffer.clear")
        elif action == "pause":
            await asyncio.sleep(0.02)
        elif action == "send":
            assert len(typist.posted()) == committed
            await typist.send_it(f"Question {step}?")
            await typist.events_until("response.created")
            await asyncio.sleep(rng.choice([0, 0.02]))
            await typist.send("response.cancel")
            events = await typist.events_until("response.done")
            committed += sum(
                event["type"] == "response.output_item.added" and event["item"].get("name") == "post"
                for event in events
            )
            await until(lambda: len(typist.posted()) >= committed)  # noqa: B023 - it is awaited at once
    assert len(typist.posted()) == committed
