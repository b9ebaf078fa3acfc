"""What is typed in pieces, edited, sent and interrupted by a tool reads as if it had been sent whole (float32)."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest

from bench.realtime_client import Answer, RealtimeClient
from bench.server import Server
from engine import messages as m
from engine.model.loader import prepare_model
from engine.settings import EngineSettings
from realtime.chat_format import ChatFormat
from realtime.conversation import Item, Message
from realtime.hermes import call_object_prefix, call_schema
from realtime.prompt import PromptBuilder
from realtime.session_config import McpTool, SessionConfig
from realtime.toolbox import Toolbox
from tests.engine.driver import grammars_of, load, load_reference, make_driver, reference_greedy
from tests.engine.prompts import PROMPTS

ANSWER_TOKENS = 16
CALCULATOR = {"type": "mcp", "server_label": "midstream", "allowed_tools": ["calculator"], "require_approval": "never"}
FORCED = {"type": "mcp", "server_label": "midstream", "name": "calculator"}
TYPED = PROMPTS[::4]


@pytest.fixture(scope="module")
def folder() -> Path:
    return prepare_model("default", EngineSettings(model="default").model_cache, lambda stage, fraction: None)


@pytest.fixture(scope="module")
def reference(folder: Path) -> Any:
    return load_reference(folder)


@pytest.fixture(scope="module")
def fmt(folder: Path) -> ChatFormat:
    return ChatFormat.from_folder(folder)


def expected_text(
    reference: Any, fmt: ChatFormat, config: SessionConfig, items: list[Item], count: int = ANSWER_TOKENS
) -> str:
    prompt = [*PromptBuilder(fmt).base(config, items), *fmt.assistant_open]
    return text_of(fmt, reference_greedy(reference, prompt, count, fmt.stop_token_ids))


def text_of(fmt: ChatFormat, tokens: list[int]) -> str:
    detokenizer = fmt.detokenizer()
    return detokenizer.feed(tokens) + detokenizer.finish()


async def type_with_edits(client: RealtimeClient, text: str, seed: int) -> None:
    """Random pieces, wrong words taken back, and an insertion in the middle."""
    random_ = random.Random(seed)
    left_out = random_.randrange(len(text) // 2)
    length = min(3, len(text) - left_out)
    typed = text[:left_out] + text[left_out + length :]
    done = 0
    while done < len(typed):
        piece = typed[done : done + random_.randint(1, 9)]
        await client.send("input_text_buffer.append", text=piece)
        done += len(piece)
        if random_.random() < 0.3:
            await client.send("input_text_buffer.append", text=" oops wrong")
            await asyncio.sleep(0.05)
            start = _utf16(typed[:done])
            await client.send("input_text_buffer.replace", text="", start=start, end=start + len(" oops wrong"))
        await asyncio.sleep(random_.random() * 0.05)
    at = _utf16(text[:left_out])
    await client.send("input_text_buffer.replace", text=text[left_out : left_out + length], start=at, end=at)


def _utf16(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2


async def typed_answer(server: Server, text: str, seed: int) -> Answer:
    async with RealtimeClient(server.websocket_url) as client:
        await client.configure(midstream={"strategy": "prefill", "events": ["trace"]})
        await type_with_edits(client, text, seed)
        if seed % 2:
            await asyncio.sleep(0.5)  # long enough for the pause to prefill everything
        await client.send("input_text_buffer.commit")
        return await client.answer(max_output_tokens=ANSWER_TOKENS)


async def test_typed_with_edits_equals_generate(server: Server, reference: Any, fmt: ChatFormat) -> None:
    answers = await asyncio.gather(*(typed_answer(server, text, seed) for seed, text in enumerate(TYPED)))
    config = SessionConfig(model="any")
    for text, answer in zip(TYPED, answers, strict=True):
        assert answer.text == expected_text(reference, fmt, config, [Message("1", "user", (text,))]), text
    cached = [answer.response["usage"]["input_token_details"]["cached_tokens"] for answer in answers]
    assert max(cached) > 0


async def test_an_answer_after_a_tool_call_equals_the_same_prompt_cold(
    server: Server, reference: Any, folder: Path, fmt: ChatFormat
) -> None:
    question = "What is 1234 * 5678?"
    async with RealtimeClient(server.websocket_url) as client:
        await client.configure(tools=[CALCULATOR], midstream={"events": ["trace"]})
        await client.send("input_text_buffer.append", text=question)
        await client.send("input_text_buffer.commit")
        answer = await client.answer(max_output_tokens=60, tool_choice=FORCED)
    call = answer.items[0]
    assert call["output"] == "7006652"
    count = answer.trace["engine"][1]["output_tokens"]
    prompt = prompt_after_call(folder, fmt, question, call)
    assert answer.text == text_of(fmt, reference_greedy(reference, prompt, count, fmt.stop_token_ids))


def prompt_after_call(folder: Path, fmt: ChatFormat, question: str, call: dict[str, Any]) -> list[int]:
    """What the server's context held when it went on: the same call generated by an engine of the test's own, because
    the wire shows its text and not its tokens."""
    tool = McpTool(type="mcp", server_label="midstream", allowed_tools=["calculator"], require_approval="never")
    config = SessionConfig(model="any", tools=[tool])
    prompt = [*PromptBuilder(fmt).base(config, [Message("1", "user", (question,))]), *fmt.assistant_open]
    prompt += fmt.forced_call_prefix("calculator")
    given = call_object_prefix("calculator")
    grammar = m.Grammar("json_schema", call_schema(Toolbox.of(config).specs()), given)
    model = load(folder)
    driver = make_driver(model, grammars=grammars_of(folder, model.config.vocab_size))
    params = m.GenerateParams(60, stop_token_ids=fmt.stop_token_ids, grammar=grammar)
    driver.apply(m.Open(1, "foreground"), m.Append(1, prompt), m.Generate(1, 1, params))
    driver.run()
    generated = driver.tokens_of(1)
    assert json.loads(given + text_of(fmt, generated))["arguments"] == json.loads(call["arguments"])
    result = [*fmt.assistant_close, *fmt.tool_result(call["output"]), *fmt.assistant_open]
    return [*prompt, *generated, *fmt.forced_call_suffix, *result]


async def test_two_turns_equal_a_conversation_sent_whole(server: Server, reference: Any, fmt: ChatFormat) -> None:
    first, second = "Name a river in Europe.", "And one in Africa?"
    async with RealtimeClient(server.websocket_url) as client:
        await client.configure(midstream={"strategy": "prefill", "events": ["trace"]})
        await client.send("input_text_buffer.commit", text=first)
        one = await client.answer(max_output_tokens=ANSWER_TOKENS)
        await type_with_edits(client, second, 3)
        await client.send("input_text_buffer.commit")
        two = await client.answer(max_output_tokens=ANSWER_TOKENS)
    items: list[Item] = [
        Message("1", "user", (first,)),
        Message("2", "assistant", (one.text,)),
        Message("3", "user", (second,)),
    ]
    assert two.text == expected_text(reference, fmt, SessionConfig(model="any"), items)
