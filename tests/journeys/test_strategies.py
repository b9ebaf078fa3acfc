"""What is done with text before it is sent, over the real WebSocket: strategies `off`, `prefill`, `draft`
and `notes`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bench.server import Server
from tests.journeys.talk import Event, Reply, Talk

FIRST = "A train leaves at noon and travels at eighty kilometres an hour. "
SECOND = "The next station is two hundred kilometres away. "
QUESTION = "When does it arrive?"
KEYS_PER_MESSAGE = 7
ANSWER_TOKENS = 16
# The opened answer and the last words of a text; everything before them can be ready at Send.
NOT_READY = 4


def family(name: str) -> Callable[[Event], bool]:
    return lambda event: event["type"].startswith(f"midstream.{name}")


async def start(talk: Talk, strategy: str) -> None:
    await talk.configure(midstream={"strategy": strategy, "events": True})


async def type_in(talk: Talk, text: str) -> None:
    for start_of_piece in range(0, len(text), KEYS_PER_MESSAGE):
        await talk.send("input_text_buffer.append", text=text[start_of_piece : start_of_piece + KEYS_PER_MESSAGE])


async def until(talk: Talk, event_type: str, **fields: object) -> Event:
    """The next event of this type with these fields."""
    while True:
        event = await talk.until(event_type)
        if all(event[name] == value for name, value in fields.items()):
            return event


async def until_read(talk: Talk, characters: int) -> None:
    """Until so much of the unsent text is in the model's memory."""
    while (await talk.until("midstream.prefill"))["prefilled_chars"] < characters:
        pass


async def items_of(server: Server, session: str) -> list[Event]:
    """The conversation as a client sees it that comes back without any memory."""
    async with Talk(server.websocket_url, session) as again:
        resumed = await again.until("midstream.session.resumed")
    items: list[Event] = resumed["snapshot"]["items"]
    return items


def texts(items: list[Event]) -> list[tuple[str, str]]:
    return [(item["role"], "".join(part["text"] for part in item["content"])) for item in items]


def cached(reply: Reply) -> int:
    return int(reply.response["usage"]["input_token_details"]["cached_tokens"])


def prompt_tokens(reply: Reply) -> int:
    return int(reply.response["usage"]["input_tokens"])


async def test_off_leaves_unsent_text_alone(server: Server) -> None:
    """What every conversation begins with may be ready; of the text nothing is."""
    async with Talk(server.websocket_url) as talk:
        await start(talk, "off")
        short = await talk.say("Hi.", max_output_tokens=1)
    async with Talk(server.websocket_url) as talk:
        await start(talk, "off")
        await type_in(talk, "Leave this text alone until it is sent. What is it about?")
        reply = await talk.say("Leave this text alone until it is sent. What is it about?", max_output_tokens=1)
    assert prompt_tokens(reply) > prompt_tokens(short)
    assert cached(reply) < prompt_tokens(short)


async def test_prefill_has_read_the_text_when_it_is_sent(server: Server) -> None:
    text = "The harbour has seventeen boats and every boat carries nine nets. How many nets are there?"
    async with Talk(server.websocket_url) as talk:
        await start(talk, "prefill")
        await type_in(talk, text)
        await until_read(talk, len(text))
        reply = await talk.say(text, max_output_tokens=ANSWER_TOKENS)
        assert cached(reply) >= prompt_tokens(reply) - NOT_READY
        assert not any(map(family("inference"), talk.events))


async def test_typing_with_edits_does_not_change_the_answer(server: Server) -> None:
    text = "Name the three largest cities of Italy."
    async with Talk(server.websocket_url) as talk:
        await start(talk, "prefill")
        await type_in(talk, "Name the four smallest villages of Spain.")
        await until_read(talk, 20)
        await talk.send("input_text_buffer.replace", text="three largest cities of Italy", start=9, end=40)
        await until_read(talk, len(text))
        typed = await talk.say(text, max_output_tokens=ANSWER_TOKENS)
    async with Talk(server.websocket_url) as talk:
        await start(talk, "off")
        whole = await talk.say(text, max_output_tokens=ANSWER_TOKENS)
    assert typed.text == whole.text
    assert prompt_tokens(typed) == prompt_tokens(whole)


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8, "top_k": 20, "seed": 5}], ids=["greedy", "sampled"])
async def test_a_draft_is_the_answer_that_a_text_sent_whole_gets(server: Server, sampling: dict[str, float]) -> None:
    text = "Which river flows through Cairo?"
    async with Talk(server.websocket_url) as talk:
        await talk.configure(
            max_output_tokens=ANSWER_TOKENS, midstream={"strategy": "draft", "events": True, "sampling": sampling}
        )
        await type_in(talk, "Which river flows through Rome?")
        await talk.until("midstream.draft.started")
        await talk.send("input_text_buffer.replace", text="Cairo", start=26, end=30)
        await talk.until("midstream.draft.started")
        # The draft's own: the text was read before it began.
        await talk.until("midstream.prefill")
        reply = await talk.say(text)
        turn = await talk.until("midstream.turn")
    assert (turn["draft"], turn["drafts"]) == ("promoted", 2)
    assert cached(reply) == prompt_tokens(reply)
    async with Talk(server.websocket_url) as talk:
        await talk.configure(max_output_tokens=ANSWER_TOKENS, midstream={"strategy": "off", "sampling": sampling})
        whole = await talk.say(text)
    assert reply.text == whole.text
    assert reply.response["usage"]["output_tokens"] == whole.response["usage"]["output_tokens"]


async def test_a_draft_has_run_its_tool_when_the_text_is_sent(server: Server) -> None:
    """And what is said then is what is said without drafts."""
    text = "How much is 12 * 34?"
    replies = []
    for strategy in ("draft", "off"):
        async with Talk(server.websocket_url) as talk:
            await talk.configure(
                tools=[{"type": "mcp", "server_label": "midstream", "require_approval": "never"}],
                tool_choice={"type": "mcp", "server_label": "midstream", "name": "calculator"},
                max_output_tokens=3 * ANSWER_TOKENS,
                midstream={"strategy": strategy, "events": True},
            )
            if strategy == "draft":
                await type_in(talk, text)
                assert (await talk.until("midstream.draft.tool"))["name"] == "calculator"
            replies.append(await talk.say(text))
            turn = await talk.until("midstream.turn")
        assert turn["draft"] == ("promoted" if strategy == "draft" else None)
    drafted, whole = replies
    assert [item.get("output") for item in drafted.response["output"]][0] == "408"
    assert drafted.text == whole.text
    assert drafted.response["usage"]["output_tokens"] == whole.response["usage"]["output_tokens"]


async def test_notes_are_taken_while_typing_and_stay_out_of_the_conversation(server: Server) -> None:
    async with Talk(server.websocket_url) as talk:
        await start(talk, "notes")
        await type_in(talk, FIRST + SECOND[:3])
        note = await until(talk, "midstream.inference.done", index=0)
        assert note["action"] == "wait" or note["text"]
        await type_in(talk, SECOND[3:] + QUESTION)
        await until(talk, "midstream.inference.done", index=1)
        await until_read(talk, len(FIRST + SECOND + QUESTION))
        reply = await talk.say(FIRST + SECOND + QUESTION, max_output_tokens=ANSWER_TOKENS)
        await talk.until("midstream.turn")
    begun = [event for event in talk.events if event["type"] == "midstream.inference.started"]
    assert [event["segment"] for event in begun] == [FIRST, SECOND]
    assert not any(map(family("inference"), reply.events))
    assert cached(reply) >= prompt_tokens(reply) - NOT_READY
    assert texts(await items_of(server, talk.session)) == [
        ("user", FIRST + SECOND + QUESTION),
        ("assistant", reply.text),
    ]


async def test_after_a_turn_with_notes_history_is_canonical(server: Server) -> None:
    """The second answer is that of a session that was told the same conversation and never had a note."""
    async with Talk(server.websocket_url) as talk:
        await start(talk, "notes")
        await type_in(talk, FIRST + QUESTION)
        await until(talk, "midstream.inference.done", index=0)
        first = await talk.say(FIRST + QUESTION, max_output_tokens=ANSWER_TOKENS)
        second = await talk.say("Say it in other words.", max_output_tokens=ANSWER_TOKENS)
    async with Talk(server.websocket_url) as talk:
        await start(talk, "off")
        for role, part, text in (("user", "input_text", FIRST + QUESTION), ("assistant", "output_text", first.text)):
            item = {"type": "message", "role": role, "content": [{"type": part, "text": text}]}
            await talk.send("conversation.item.create", item=item)
            await talk.until("conversation.item.done")
        told = await talk.say("Say it in other words.", max_output_tokens=ANSWER_TOKENS)
    assert prompt_tokens(second) == prompt_tokens(told)
    assert second.text == told.text


async def test_an_edit_discards_the_notes_that_read_what_changed(server: Server) -> None:
    async with Talk(server.websocket_url) as talk:
        await start(talk, "notes")
        await type_in(talk, FIRST + SECOND)
        await until(talk, "midstream.inference.done", index=0)
        await talk.send("input_text_buffer.replace", text="bus", start=2, end=7)
        discarded = await until(talk, "midstream.inference.discarded", index=0)
        assert discarded["reason"] == "edit"
        started = await until(talk, "midstream.inference.started", index=0)
        assert started["segment"].startswith("A bus leaves at noon")
        assert started["revision"] >= discarded["revision"]


async def test_an_edit_behind_a_note_keeps_it(server: Server) -> None:
    async with Talk(server.websocket_url) as talk:
        await start(talk, "notes")
        await type_in(talk, FIRST + "When dos")
        await until(talk, "midstream.inference.done", index=0)
        await talk.send("input_text_buffer.replace", text="does it arrive?", start=len(FIRST) + 5, end=len(FIRST) + 8)
        await until_read(talk, len(FIRST + QUESTION))
        await talk.say(FIRST + QUESTION, max_output_tokens=ANSWER_TOKENS)
        turn = await talk.until("midstream.turn")
        assert turn["notes"] == 1
        assert not any(map(family("inference.discarded"), talk.events))


@pytest.mark.parametrize("strategy", ["notes", "prefill"])
async def test_a_new_configuration_drops_the_notes(server: Server, strategy: str) -> None:
    async with Talk(server.websocket_url) as talk:
        await start(talk, "notes")
        await type_in(talk, FIRST + QUESTION)
        await until(talk, "midstream.inference.done", index=0)
        await talk.configure(instructions="Answer in one word.", midstream={"strategy": strategy})
        reply = await talk.say(FIRST + QUESTION, max_output_tokens=ANSWER_TOKENS)
        await talk.until("midstream.turn")
    dropped = [event for event in talk.events if event["type"] == "midstream.inference.discarded"]
    assert dropped[0]["index"] == 0
    assert dropped[0]["reason"] == "configuration"
    assert reply.status in ("completed", "incomplete")
