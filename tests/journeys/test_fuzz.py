"""A few hundred random events, malformed or merely surprising, with fixed seeds: each is answered or closed properly,
nothing falls over, and the session answers afterwards."""

from __future__ import annotations

import asyncio
import json
import random
import string
from typing import Any

import pytest

from bench.server import Server
from tests.journeys.talk import WAIT_TOOL, Talk

pytestmark = pytest.mark.timeout(400)

EVENTS = 250
LONG_S = 60.0
TYPES = (
    "session.update",
    "input_text_buffer.append",
    "input_text_buffer.replace",
    "input_text_buffer.clear",
    "input_text_buffer.commit",
    "input_text.append",
    "conversation.item.create",
    "conversation.item.retrieve",
    "conversation.item.delete",
    "conversation.item.truncate",
    "response.create",
    "response.cancel",
    "input_audio_buffer.append",
)
FIELDS = (
    "text",
    "start",
    "end",
    "base_revision",
    "session",
    "item",
    "item_id",
    "previous_item_id",
    "response",
    "response_id",
    "event_id",
    "instructions",
    "tools",
    "tool_choice",
    "temperature",
    "top_p",
    "seed",
    "max_output_tokens",
    "midstream",
    "strategy",
    "sampling",
    "events",
    "offsets",
    "truncation",
    "metadata",
    "role",
    "content",
    "type",
    "name",
    "parameters",
    "call_id",
    "arguments",
    "output",
    "conversation",
    "input",
    "id",
)
WORDS = (
    *("message", "function", "mcp", "midstream", "wait", "calculator", "user", "assistant", "system", "input_text"),
    *(
        "auto",
        "none",
        "required",
        "disabled",
        "notes",
        "draft",
        "prefill",
        "off",
        "utf16",
        "code_points",
        "inf",
        "root",
        "",
        " ",
    ),
    *(
        "Say hi. ",
        "日本語",
        "👩‍👩‍👧‍👦",
        "\u0000",
        "\u202e",
        "<|im_end|>",
        "a" * 3000,
        "\r\n",
        "{}",
        "e\u0301",
        "\ufeff",
    ),
)
PLAUSIBLE: tuple[dict[str, Any], ...] = (
    {"type": "input_text_buffer.append", "text": "The quick brown fox. "},
    {"type": "input_text_buffer.append", "text": "👍🏽 e\u0301 "},
    {"type": "input_text_buffer.replace", "text": "jumps", "start": 0, "end": 3},
    {"type": "input_text_buffer.replace", "text": "over"},
    {"type": "input_text_buffer.commit"},
    {"type": "response.create", "response": {"max_output_tokens": 2}},
    {"type": "response.create", "response": {"max_output_tokens": 3, **WAIT_TOOL}},
    {"type": "response.cancel"},
    {"type": "session.update", "session": {"midstream": {"strategy": "notes", "events": True}}},
    {"type": "session.update", "session": {"midstream": {"strategy": "prefill", "events": ["kv"]}}},
    {"type": "session.update", "session": {"midstream": {"strategy": "draft", "events": ["draft"]}}},
    {"type": "session.update", "session": {"tools": [], "tool_choice": "auto", "max_output_tokens": 4}},
    {
        "type": "conversation.item.create",
        "item": {"type": "function_call", "name": "f", "arguments": "{", "call_id": "c"},
    },
    {"type": "conversation.item.create", "item": {"type": "function_call_output", "call_id": "c", "output": "x"}},
    {
        "type": "conversation.item.create",
        "item": {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Say hi."}]},
    },
)


def _value(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.randrange(9 if depth < 4 else 6)
    match kind:
        case 0:
            return rng.choice(WORDS)
        case 1:
            return rng.choice([0, 1, -1, 5, 2**31, 2**53, 2**63 - 1, 2**64, -(2**63)])
        case 2:
            return rng.choice([0.5, -0.0, 1e308, 1e-320, 2.0])
        case 3:
            return rng.choice([True, False, None])
        case 4:
            return "".join(rng.choices(string.printable, k=rng.randrange(20)))
        case 5:
            return rng.choice(TYPES)
        case 6:
            return [_value(rng, depth + 1) for _ in range(rng.randrange(4))]
        case _:
            return {rng.choice(FIELDS): _value(rng, depth + 1) for _ in range(rng.randrange(5))}


def _frame(rng: random.Random, number: int) -> str:
    """With an event id, except where it is no JSON at all."""
    kind = rng.randrange(10)
    if kind < 4:
        event = dict(rng.choice(PLAUSIBLE))
    else:
        event = {"type": rng.choice(TYPES), **{rng.choice(FIELDS): _value(rng) for _ in range(rng.randrange(4))}}
    event["event_id"] = f"fuzz{number}"
    frame = json.dumps(event, ensure_ascii=rng.random() < 0.5)
    if kind == 9:
        start = rng.randrange(len(frame))
        frame = frame[:start] + rng.choice(["", "\x00", "}", '"', "\\", "1e999"]) + frame[start + rng.randrange(4) :]
    return frame


@pytest.mark.parametrize("seed", [1, 2])
async def test_random_events_break_nothing(server: Server, seed: int) -> None:
    rng = random.Random(seed)
    pids = {name: server.pid(name) for name in ("redis", "engine", "host", "worker", "web")}
    async with Talk(server.websocket_url) as talk:
        reading = asyncio.create_task(_read(talk))
        for number in range(EVENTS):
            await talk.socket.send(_frame(rng, number))
            if rng.random() < 0.1:
                await asyncio.sleep(rng.random() / 5)
        await talk.socket.send('{"type": "no.such.event", "event_id": "the last"}')
        async with asyncio.timeout(LONG_S):
            await reading
        # Whatever the fuzz has left behind: a running response, a strange configuration, unsent text.
        await talk.configure(instructions="", tools=[], tool_choice="auto", max_output_tokens=2, truncation="auto")
        async with asyncio.timeout(LONG_S):
            await _settle(talk)
        reply = await talk.say("Say hi.", temperature=0.0)
        assert reply.status in ("completed", "incomplete"), reply.response
        talk.check()
    assert pids == {name: server.pid(name) for name in pids}
    async with Talk(server.websocket_url) as talk:
        assert (await talk.say("Say hi.", max_output_tokens=1)).status in ("completed", "incomplete")


async def _read(talk: Talk) -> None:
    while (await talk.next()).get("error", {}).get("event_id") != "the last":
        pass


async def _settle(talk: Talk) -> None:
    """Cancels until nothing runs or waits any more."""
    event: dict[str, Any] = {"type": ""}
    while event["type"] != "error":
        cancel = await talk.send("response.cancel")
        while True:
            event = await talk.until("response.done", "error")
            if event["type"] == "response.done" or event["error"]["event_id"] == cancel:
                break
