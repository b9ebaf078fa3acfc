"""Strategy `auto`: the choice, and what comes of it over an engine that follows a script."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import redis

from engine import messages as m
from realtime.chat_format import ChatFormat
from realtime.simultaneous.auto import (
    BUSY,
    MIN_SENTENCES,
    REMEMBERED,
    TRY_EVERY,
    Choice,
    DraftHistory,
    Situation,
    choose,
)
from tests.realtime.scripted_engine import ScriptedHost, scripted_host

QUESTION = "What is the capital of France?"
LONG = "A train leaves at noon. It travels at eighty. The next stop is far. The last one is farther. When is it there?"
PLAIN = Situation(fits=True, awaited=0, sentences=0, lossless=True)


def history(*turns: tuple[int, int]) -> DraftHistory:
    drafts = DraftHistory()
    for used, wasted in turns:
        drafts.drafted(used, wasted)
    return drafts


# The choice


def test_whatever_the_situation_a_lossless_session_gets_no_notes() -> None:
    for fits, awaited, sentences in itertools.product((True, False), (0, 3), (0, 50)):
        assert choose(Situation(fits, awaited, sentences, True), history()).strategy != "notes"


def test_notes_are_taken_where_they_are_allowed_and_there_is_something_to_think_about() -> None:
    few, many = (Situation(True, 0, number, False) for number in (MIN_SENTENCES - 1, MIN_SENTENCES))
    assert choose(many, history()) == Choice("notes", "many_sentences")
    assert choose(few, history()).strategy == "draft"


def test_a_text_that_does_not_fit_is_left_alone() -> None:
    assert choose(Situation(False, 0, 50, False), history()) == Choice("off", "too_long")


def test_a_busy_engine_is_asked_for_nothing_but_what_the_answer_needs() -> None:
    assert choose(Situation(True, BUSY, 50, False), history()) == Choice("prefill", "busy")


def test_drafts_are_tried_first_and_go_on_while_they_pay() -> None:
    assert choose(PLAIN, history()) == Choice("draft", "drafts_untried")
    assert choose(PLAIN, history((10, 20))) == Choice("draft", "drafts_pay")
    assert choose(PLAIN, history((0, 100))) == Choice("prefill", "drafts_wasted")
    assert choose(PLAIN, history((0, 100), (40, 60))) == Choice("draft", "drafts_pay")


def test_after_bad_drafts_they_are_tried_again_now_and_then() -> None:
    drafts = history((0, 100))
    for _ in range(TRY_EVERY - 1):
        drafts.not_drafted()
        assert choose(PLAIN, drafts).strategy == "prefill"
    drafts.not_drafted()
    assert choose(PLAIN, drafts) == Choice("draft", "drafts_untried")
    drafts.drafted(0, 100)
    assert choose(PLAIN, drafts).strategy == "prefill"


def test_old_turns_are_forgotten() -> None:
    assert choose(PLAIN, history((0, 10**6), *[(1, 1)] * REMEMBERED)).strategy == "draft"


# Sessions


@pytest.fixture
async def session(
    smol_format: ChatFormat, client: redis.Redis, redis_url: str, tmp_path: Path
) -> AsyncIterator[ScriptedHost]:
    async with scripted_host(smol_format, redis_url, tmp_path, draft_pause_s=0.01, settle_s=0.005) as host:
        host.engine.prefills = True
        await host.open_session()
        await host.configure(midstream={"events": True})
        yield host


async def chosen(host: ScriptedHost, text: str) -> tuple[str, str]:
    await host.send("input_text_buffer.replace", text=text)
    event = (await host.events_until("midstream.strategy"))[-1]
    return event["strategy"], event["reason"]


async def turn_of(host: ScriptedHost, text: str) -> dict[str, Any]:
    await host.ask(text)
    return (await host.events_until("midstream.turn"))[-1]


async def test_it_is_the_default_and_says_why(session: ScriptedHost) -> None:
    assert await chosen(session, QUESTION) == ("draft", "drafts_untried")
    await session.events_until("midstream.draft.started")
    session.say("Paris.")
    assert (await turn_of(session, "Something else."))["strategy"] == "draft"


async def test_wasted_drafts_make_it_read_along_only(session: ScriptedHost) -> None:
    session.say("Paris, of course, and nothing else. " * 4, None)
    assert (await chosen(session, QUESTION))[0] == "draft"
    await session.engine.until(lambda: bool(session.engine.prompts))
    session.say("Lyon.")
    turn = await turn_of(session, "Something else.")
    assert turn["draft"] == "unused"
    assert await chosen(session, QUESTION) == ("prefill", "drafts_wasted")
    session.say("Paris.")
    assert (await turn_of(session, QUESTION))["strategy"] == "prefill"
    assert len(session.engine.of_kind(m.Fork)) == 1


async def test_answers_that_are_waited_for_stop_new_drafts(session: ScriptedHost) -> None:
    assert session.node.link.current is not None
    idle = dict.fromkeys(m.Stats.__struct_fields__[:17], 0)
    session.node.link.current.stats = m.Stats(**idle | {"awaited": 3})  # type: ignore[arg-type]
    assert await chosen(session, QUESTION) == ("prefill", "busy")


async def test_notes_need_a_session_that_allows_a_changed_answer(session: ScriptedHost) -> None:
    assert (await chosen(session, LONG))[0] == "draft"
    await session.configure(midstream={"lossless": False})
    await session.send("input_text_buffer.clear")
    session.say("wait.")
    assert await chosen(session, LONG) == ("notes", "many_sentences")
    await session.events_until("midstream.inference.started")


async def test_what_a_client_sends_whole_has_no_strategy_event(session: ScriptedHost) -> None:
    session.say("Paris.")
    await session.send("input_text_buffer.commit", text=QUESTION)
    await session.send("response.create")
    events = await session.events_until("response.done")
    assert not [event for event in events if event["type"] == "midstream.strategy"]
