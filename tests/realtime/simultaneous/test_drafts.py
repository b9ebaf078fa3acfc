"""Answers begun before Send, over an engine that follows a script. What a real engine says is in
`test_drafts_lossless.py`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis

from engine import messages as m
from realtime.chat_format import ChatFormat
from realtime.simultaneous.draft import Basis, may_promote
from realtime.simultaneous.drafts import looks_complete
from realtime.tool_calls import CLOSE, OPEN
from tests.realtime.scripted_engine import ScriptedHost, scripted_host

QUESTION = "What is the capital of France?"
SERVER_TOOLS = {"type": "mcp", "server_label": "midstream", "require_approval": "never"}
CALL = f'{OPEN}{{"name": "calculator", "arguments": {{"expression": "7777+1"}}}}{CLOSE}'

Events = list[dict[str, Any]]


# The decision

PARAMS = m.GenerateParams(64, m.Sampling(0.7, 0.9, 40, 0.1, 5), [2], m.Grammar("regex", "a*"))
BASIS = Basis([1, 2, 3], PARAMS, "epoch")


def changed(**fields: Any) -> Basis:
    return Basis(BASIS.prompt, msgspec.structs.replace(PARAMS, **fields), BASIS.epoch)


def sampled(**fields: Any) -> Basis:
    return changed(sampling=msgspec.structs.replace(PARAMS.sampling, **fields))


def test_the_same_in_everything_may_be_promoted() -> None:
    assert may_promote(BASIS, Basis([1, 2, 3], msgspec.structs.replace(PARAMS), "epoch"))


@pytest.mark.parametrize(
    "answer",
    [
        Basis([1, 2, 4], PARAMS, "epoch"),
        Basis([1, 2], PARAMS, "epoch"),
        Basis([1, 2, 3, 4], PARAMS, "epoch"),
        Basis([1, 2, 3], PARAMS, "another epoch"),
        Basis([1, 2, 3], PARAMS, ""),
        changed(max_tokens=63),
        changed(stop_token_ids=[2, 3]),
        changed(grammar=None),
        changed(grammar=m.Grammar("regex", "b*")),
        sampled(seed=6),
        sampled(temperature=0.8),
        sampled(top_p=1.0),
        sampled(top_k=0),
        sampled(min_p=0.0),
    ],
)
def test_whatever_else_its_tokens_depend_on_keeps_a_draft_from_promotion(answer: Basis) -> None:
    assert not may_promote(BASIS, answer)
    assert not may_promote(answer, BASIS)


def test_nothing_is_promoted_without_an_engine() -> None:
    assert not may_promote(Basis([1], PARAMS, ""), Basis([1], PARAMS, ""))


@pytest.mark.parametrize("text", ["Why?", "Why? ", "He asked 'why?'", "(Really?)", "どうして？", "Why?!?"])
def test_a_question_looks_complete(text: str) -> None:
    assert looks_complete(text)


@pytest.mark.parametrize("text", ["", " ", "Why", "Why? Because", "Say hi.", "'", "1?2"])
def test_other_text_does_not(text: str) -> None:
    assert not looks_complete(text)


# Drafts


@pytest.fixture
async def session(
    smol_format: ChatFormat, client: redis.Redis, redis_url: str, tmp_path: Path
) -> AsyncIterator[ScriptedHost]:
    options: dict[str, Any] = {"draft_pause_s": 0.01, "settle_s": 0.005, "max_drafts": 3}
    async with scripted_host(smol_format, redis_url, tmp_path, **options) as host:
        host.engine.prefills = True
        await host.open_session()
        await host.configure(midstream={"strategy": "draft", "events": ["draft", "turn"]})
        yield host


async def append(host: ScriptedHost, text: str) -> None:
    await host.send("input_text_buffer.append", text=text)


async def replace(host: ScriptedHost, text: str) -> None:
    await host.send("input_text_buffer.replace", text=text)


async def drafted(host: ScriptedHost, text: str, says: str, reason: m.FinishReason | None = None) -> m.Generate:
    """Types a text and waits for its draft, which has said all of `says` then."""
    host.say(says, reason)
    await replace(host, text)
    await host.events_until("midstream.draft.started")
    before = len(host.engine.of_kind(m.Fork))
    await host.engine.until(lambda: len(host.engine.of_kind(m.Generate)) >= before)
    generate: m.Generate = host.engine.of_kind(m.Generate)[-1]
    return generate


def text_of(events: Events) -> str:
    return "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")


async def turn_of(host: ScriptedHost) -> dict[str, Any]:
    return (await host.events_until("midstream.turn"))[-1]


async def send(host: ScriptedHost, text: str, **response: Any) -> None:
    await host.send("input_text_buffer.commit", text=text)
    await host.send("response.create", response=response)


async def test_a_hit_is_there_at_once_and_goes_on(session: ScriptedHost) -> None:
    """The engine says nothing more before the client has read what was drafted."""
    draft = await drafted(session, QUESTION, "Paris")
    await send(session, QUESTION)
    assert text_of(await session.events_until("response.output_text.delta")) == "Paris"
    assert session.engine.of_kind(m.Generate) == [draft]
    assert session.engine.of_kind(m.SetPriority) == [m.SetPriority(draft.context, "foreground")]
    for token in session.format.text(", of course."):
        session.engine.emit(m.Tokens(draft.context, draft.generation, [token]))
    prompt = len(session.engine.prompts[0])
    session.engine.emit(m.Finished(draft.context, draft.generation, "stop", prompt, 1, 9, 1.0, 1.0, 1.0))
    done = (await session.events_until("response.done"))[-1]["response"]
    assert done["output"][0]["content"][0]["text"] == "Paris, of course."
    assert done["usage"]["input_token_details"] == {"cached_tokens": prompt, "text_tokens": prompt}
    said = len(session.format.text("Paris")) + len(session.format.text(", of course."))
    assert done["usage"]["output_tokens"] == said
    turn = await turn_of(session)
    assert (turn["drafts"], turn["draft"], turn["draft_wasted_tokens"]) == (1, "promoted", 0)
    assert turn["draft_tokens"] == len(session.format.text("Paris"))
    assert set(session.engine.contexts) == {draft.context}


async def test_a_draft_that_is_complete_is_the_whole_answer(session: ScriptedHost) -> None:
    await drafted(session, QUESTION, "Paris.", "stop")
    await send(session, QUESTION)
    assert text_of(await session.events_until("response.done")) == "Paris."
    assert len(session.engine.of_kind(m.Generate)) == 1


async def test_the_next_turn_goes_on_from_a_promoted_draft(session: ScriptedHost) -> None:
    await drafted(session, QUESTION, "Paris.", "stop")
    await send(session, QUESTION)
    await session.events_until("response.done")
    draft = await drafted(session, "Are you sure?", "Yes.", "stop")
    await send(session, "Are you sure?")
    assert text_of(await session.events_until("response.done")) == "Yes."
    fmt = session.format
    history = [*fmt.user_open, *fmt.text(QUESTION), *fmt.user_close, *fmt.assistant_open, *fmt.text("Paris.")]
    assert str(history)[1:-1] in str(session.engine.prompts[-1])
    await turn_of(session)
    assert set(session.engine.contexts) == {draft.context}


async def test_a_pause_is_enough_and_a_question_does_not_wait_for_one(
    session: ScriptedHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    await drafted(session, "Tell me about France", "France is")
    monkeypatch.setattr(session.node.settings, "draft_pause_s", 3600.0)
    await drafted(session, QUESTION, "Paris")


async def test_nothing_is_drafted_with_another_strategy(session: ScriptedHost) -> None:
    for strategy in ("prefill", "off"):
        await session.configure(midstream={"strategy": strategy})
        await replace(session, QUESTION)
        session.say("Paris.")
        await session.ask(QUESTION)
    assert session.engine.of_kind(m.Fork) == []


async def test_an_edit_stops_the_draft_at_once_and_its_words_are_a_guess(
    session: ScriptedHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session.node.settings, "max_drafts", 1)
    draft = await drafted(session, QUESTION, "Paris, of course.")
    session.say("Paris, as ever.")
    await append(session, " Tell")
    discarded = (await session.events_until("midstream.draft.discarded"))[-1]
    assert discarded["tokens"] == len(session.format.text("Paris, of course."))
    await session.engine.until(lambda: m.Close(draft.context) in session.engine.commands)
    await send(session, QUESTION + " Tell me.")
    assert text_of(await session.events_until("response.done")) == "Paris, as ever."
    answer = session.engine.of_kind(m.Generate)[-1]
    assert answer.params.draft == session.format.text("Paris, of course.")
    turn = await turn_of(session)
    kept = len(session.format.text("Paris,"))
    assert (turn["draft"], turn["draft_tokens"]) == ("partly_used", kept)
    assert turn["draft_wasted_tokens"] == len(session.format.text("Paris, of course.")) - kept
    assert set(session.engine.contexts) == {answer.context}


@pytest.mark.parametrize(
    "response",
    [{"max_output_tokens": 3}, {"seed": 4}, {"temperature": 0.5}, {"instructions": "Be brief."}],
)
async def test_another_way_of_answering_does_not_get_the_draft(session: ScriptedHost, response: dict[str, Any]) -> None:
    draft = await drafted(session, QUESTION, "Paris, of course.")
    session.say("Lyon.")
    await send(session, QUESTION, **response)
    assert text_of(await session.events_until("response.done")) == "Lyon."
    turn = await turn_of(session)
    assert (turn["draft"], turn["draft_tokens"]) == ("unused", 0)
    assert draft.context not in session.engine.contexts
    assert len(session.engine.contexts) == 1


async def test_what_a_draft_depends_on_may_change_without_an_edit(session: ScriptedHost) -> None:
    await drafted(session, QUESTION, "Paris")
    session.say("Paris")
    await session.send("session.update", session={"type": "realtime", "instructions": "Answer in French."})
    await session.events_until("midstream.draft.discarded")
    await session.events_until("midstream.draft.started")
    session.say("Paris")
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi."}]}
    await session.send("conversation.item.create", item=item)
    await session.events_until("midstream.draft.discarded")


async def test_what_it_does_not_depend_on_may_change(session: ScriptedHost) -> None:
    await drafted(session, QUESTION, "Paris.", "stop")
    await session.configure(metadata={"colour": "red"}, midstream={"events": ["turn"]})
    await send(session, QUESTION)
    assert text_of(await session.events_until("response.done")) == "Paris."
    assert (await turn_of(session))["draft"] == "promoted"


async def test_typing_on_between_commit_and_response_leaves_the_draft_alone(session: ScriptedHost) -> None:
    await drafted(session, QUESTION, "Paris.", "stop")
    await session.send("input_text_buffer.commit", text=QUESTION)
    await append(session, "And of Italy")
    await session.events_until("input_text_buffer.updated")
    session.say("Rome")
    await session.send("response.create")
    assert text_of(await session.events_until("response.done")) == "Paris."
    assert (await turn_of(session))["draft"] == "promoted"


async def test_a_turn_has_so_many_drafts_and_no_more(session: ScriptedHost) -> None:
    for number in range(3):
        await drafted(session, f"Is it {number}?", "Yes")
    session.say("No.")
    await replace(session, "Is it 4?")
    await session.events_until("midstream.draft.discarded")
    await send(session, "Is it 4?")
    assert text_of(await session.events_until("response.done")) == "No."
    turn = await turn_of(session)
    assert (turn["drafts"], turn["draft"], turn["draft_wasted_tokens"]) == (3, "unused", 3)
    await drafted(session, "And now?", "Yes")


async def test_without_a_seed_one_is_drawn_for_all_drafts_and_the_answer(session: ScriptedHost) -> None:
    await session.configure(temperature=1.0)
    first = await drafted(session, QUESTION, "Paris")
    second = await drafted(session, QUESTION + " And why?", "Paris")
    session.say("Paris.")
    await send(session, "Something else.")
    await session.events_until("response.done")
    answer = session.engine.of_kind(m.Generate)[-1]
    assert first.params.sampling == second.params.sampling == answer.params.sampling
    assert first.params.sampling.temperature == 1.0
    third = await drafted(session, QUESTION, "Paris")
    assert third.params.sampling.seed != first.params.sampling.seed
    await session.configure(seed=7)
    await session.events_until("midstream.draft.started")
    fourth = await drafted(session, QUESTION + " Or is it?", "Paris")
    assert fourth.params.sampling.seed == 7


async def test_a_later_draft_guesses_what_an_earlier_one_said(session: ScriptedHost) -> None:
    await drafted(session, QUESTION, "Paris")
    second = await drafted(session, QUESTION + " And why?", "Paris")
    assert second.params.draft == session.format.text("Paris")


async def test_what_a_draft_says_after_a_call_is_not_part_of_the_answer(session: ScriptedHost) -> None:
    """Plain decoding stops there."""
    function = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
    await session.configure(tools=[function])
    call = f'{OPEN}{{"name": "look", "arguments": {{}}}}{CLOSE}'
    await drafted(session, "What do you see?", f"{call} I see a very large tree, and much more.")
    await send(session, "What do you see?")
    done = (await session.events_until("response.done"))[-1]["response"]
    assert [item["type"] for item in done["output"]] == ["function_call"]
    assert done["usage"]["output_tokens"] == len(session.format.text(f"{call} I"))


async def test_a_demanded_call_is_drafted_like_any_answer(session: ScriptedHost) -> None:
    function = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
    await session.configure(tools=[function], tool_choice={"type": "function", "name": "look"})
    draft = await drafted(session, "What do you see?", " {}}", "stop")
    assert draft.params.grammar is not None
    await send(session, "What do you see?")
    (call,) = (await session.events_until("response.done"))[-1]["response"]["output"]
    assert (call["name"], call["arguments"]) == ("look", "{}")
    assert (await turn_of(session))["draft"] == "promoted"


@pytest.mark.parametrize("end", ["clear", "off", "disconnect"])
async def test_a_draft_that_nobody_can_want_is_closed(session: ScriptedHost, end: str) -> None:
    draft = await drafted(session, QUESTION, "Paris")
    if end == "clear":
        await session.send("input_text_buffer.clear")
    elif end == "off":
        await session.send("session.update", session={"type": "realtime", "midstream": {"strategy": "off"}})
    else:
        await session.close_socket()
    await session.engine.until(lambda: draft.context not in session.engine.contexts)
    assert len(session.engine.contexts) == 1


async def test_a_cancelled_response_lets_go_of_its_draft(session: ScriptedHost) -> None:
    draft = await drafted(session, QUESTION, "Paris")
    session.say("Paris", None)
    await send(session, "Something else.")
    await session.send("response.cancel")
    done = (await session.events_until("response.done"))[-1]["response"]
    assert done["status"] == "cancelled"
    await session.engine.until(lambda: draft.context not in session.engine.contexts)
    assert len(session.engine.contexts) == 1


async def test_a_refused_fork_costs_nothing_but_the_draft(
    session: ScriptedHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session.node.settings, "max_drafts", 1)
    draft = await drafted(session, QUESTION, "Paris")
    session.engine.emit(m.Failed(draft.context, 0, "engine_overloaded", "all contexts are in use"))
    session.say("Paris.")
    await send(session, QUESTION)
    assert text_of(await session.events_until("response.done")) == "Paris."
    answer = session.engine.of_kind(m.Generate)[-1]
    assert answer.context == session.engine.of_kind(m.Open)[0].context


async def test_a_lost_engine_costs_nothing_but_the_draft(session: ScriptedHost) -> None:
    await drafted(session, QUESTION, "Paris")
    await session.configure(midstream={"strategy": "prefill"})
    assert session.engine.writer is not None
    session.engine.writer.close()
    session.say("Paris.")
    await send(session, QUESTION)
    assert text_of(await session.events_until("response.done")) == "Paris."
    assert (await turn_of(session))["draft"] == "partly_used"


async def test_drafts_and_their_tokens_are_counted(session: ScriptedHost) -> None:
    await drafted(session, "Is it?", "Paris, of course.")
    await drafted(session, QUESTION, "Paris.", "stop")
    await send(session, QUESTION)
    await turn_of(session)
    text = session.node.metrics.gauges(None, 0).decode()
    used, wasted = len(session.format.text("Paris.")), len(session.format.text("Paris, of course."))
    assert 'midstream_drafts_total{node="node-1",outcome="promoted"} 1.0' in text
    assert 'midstream_drafts_total{node="node-1",outcome="unused"} 1.0' in text
    assert f'midstream_draft_tokens_total{{node="node-1",use="used"}} {used}.0' in text
    assert f'midstream_draft_tokens_total{{node="node-1",use="wasted"}} {wasted}.0' in text


async def test_unsent_text_is_in_no_event_of_a_draft(session: ScriptedHost) -> None:
    session.say("Lyon", None)
    await append(session, "My secret is Lyon?")
    events = await session.events_until("midstream.draft.started")
    await session.send("input_text_buffer.clear")
    events += await session.events_until("input_text_buffer.cleared")
    assert b"Lyon" not in msgspec.json.encode(events)
