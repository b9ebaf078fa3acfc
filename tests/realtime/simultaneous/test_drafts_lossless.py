"""Answers begun before Send, in a real engine: they are those of strategy `off`, and nothing of them is left.

The model is tiny and random, with the tokenizer of the default one: what it says depends on every word.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from engine import messages as m
from engine.client import EngineClient
from realtime.chat_format import ChatFormat
from realtime.messages import ToolJob, ToolResult
from realtime.tools import CALCULATOR, SERVER_TOOLS
from tests.engine.test_process import Engine, gauges
from tests.realtime.running_host import LIMIT_S, RunningHost, running_node

VOCAB = 49152
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
OPTIONS: dict[str, Any] = {"draft_pause_s": 0.01, "settle_s": 0.005, "max_drafts": 100}
ANSWER_TOKENS = 16
LONG_ANSWER = 200
# Few candidates: between tens of thousands that are equally likely, the last bits of the arithmetic decide.
SAMPLED: dict[str, Any] = {"temperature": 1.0, "top_k": 20, "top_p": 0.95}
WORDS = ("What", "is", "the", "capital", "of", "France", "why", "blue", "tell", "me", "42", "caf\u00e9", "\U0001f600")
ENDINGS = (" ", "? ", ". ", ", ", "?", "\n")
QUESTION = "What is the capital of France?"


@pytest.fixture(scope="module")
def folder(smol_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny_chat")
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=2048,
        initializer_range=0.3,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    torch.manual_seed(7)
    causal_lm: Any = AutoModelForCausalLM
    causal_lm.from_config(config, dtype=torch.float32).save_pretrained(folder)
    for name in TOKENIZER_FILES:
        shutil.copy(smol_folder / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def engine(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    engine = Engine(folder, tmp_path_factory.mktemp("engine") / "engine.sock", MIDSTREAM_KV_TOKENS="16384")
    yield engine
    engine.stop()


@pytest.fixture(scope="module")
def fmt(folder: Path) -> ChatFormat:
    return ChatFormat.from_folder(folder)


class Typist(RunningHost):
    """Counts the tokens that the engine says."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.said = 0
        self._more = asyncio.Event()

    def listen(self) -> None:
        self.client.on_step = self._on_step

    @property
    def client(self) -> EngineClient:
        assert self.node.link.current is not None
        return self.node.link.current

    async def until_said(self, tokens: int) -> None:
        """Until the engine has said so many in all."""
        async with asyncio.timeout(LIMIT_S):
            while self.said < tokens:
                self._more.clear()
                await self._more.wait()

    def _on_step(self, step: m.Step) -> None:
        self.said += sum(len(item.tokens) for item in step.items if isinstance(item, m.Tokens))
        self._more.set()

    async def begin(self, session: str, strategy: str, length: int = ANSWER_TOKENS, **sampling: Any) -> None:
        await self.open_session(session)
        midstream = {"strategy": strategy, "events": ["draft", "turn"], "sampling": sampling}
        await self.configure(max_output_tokens=length, midstream=midstream)

    async def replace(self, text: str, start: int = 0, end: int | None = None) -> None:
        span = {} if end is None else {"start": start, "end": end}
        await self.send("input_text_buffer.replace", text=text, **span)

    async def drafted(self, text: str, tokens: int = 1) -> None:
        """Types a text and waits for so many tokens of its draft."""
        before = self.said
        await self.replace(text)
        await self.events_until("midstream.draft.started")
        await self.until_said(before + tokens)

    async def answer(self, text: str, **response: Any) -> dict[str, Any]:
        """Sends a text; the events of the response and of the turn, by type (the last of each)."""
        events = await self.ask(text, **response) + await self.events_until("midstream.turn")
        return {event["type"]: event for event in events}


def said(answer: dict[str, Any]) -> str:
    return str(answer["response.output_text.done"]["text"])


def cached(answer: dict[str, Any]) -> tuple[int, int]:
    """Of the prompt's tokens."""
    usage = answer["response.done"]["response"]["usage"]
    return usage["input_token_details"]["cached_tokens"], usage["input_tokens"]


@pytest.fixture
async def typist(fmt: ChatFormat, engine: Engine, client: redis.Redis, redis_url: str) -> AsyncIterator[Typist]:
    async with running_node(fmt, redis_url, engine.path, "tiny", **OPTIONS) as node:
        typist = Typist(node)
        await node.link.client(LIMIT_S)
        typist.listen()
        yield typist


class Script:
    """Somebody who types, pauses and changes their mind."""

    def __init__(self, typist: Typist, rng: random.Random) -> None:
        self._typist = typist
        self._rng = rng
        self._texts = [""]

    async def turn(self) -> str:
        """Types a text; returns what is to be sent."""
        self._texts = [""]
        for _ in range(self._rng.randint(2, 6)):
            before = self._typist.said
            await self._edit()
            if self._rng.random() < 0.5:
                # The draft of this text will say as many in any case.
                await self._typist.until_said(before + self._rng.randint(1, ANSWER_TOKENS))
        return self._texts[-1]

    async def _edit(self) -> None:
        text = self._texts[-1]
        action = self._rng.choice(["append", "append", "splice", "undo", "retype"])
        new = self._words()
        if action == "undo" and len(self._texts) > 2 and self._texts[-2] != text:
            new = self._texts[-2]
            await self._typist.replace(new)
        elif action == "retype":
            await self._typist.replace(new)
        elif action == "splice" and text.isascii() and text:
            start = self._rng.randrange(len(text))
            end = self._rng.randint(start, len(text))
            await self._typist.replace(new, start, end)
            new = text[:start] + new + text[end:]
        else:
            await self._typist.send("input_text_buffer.append", text=new)
            new = text + new
        self._texts.append(new)

    def _words(self) -> str:
        words = self._rng.choices(WORDS, k=self._rng.randint(1, 6))
        # Unlike any other, so that an edit always changes the text.
        return " ".join(words) + f" {self._rng.random():.3f}" + self._rng.choice(ENDINGS)


@pytest.mark.parametrize("sampling", [{}, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("number", range(40))
async def test_whatever_is_typed_the_answer_is_that_of_a_text_sent_whole(
    typist: Typist, number: int, sampling: dict[str, Any]
) -> None:
    rng = random.Random(number)
    sampling = sampling | {"seed": number}
    await typist.begin("typed", "draft", **sampling)
    texts: list[str] = []
    answers: list[str] = []
    for _ in range(rng.randint(1, 2)):
        texts.append(await Script(typist, rng).turn())
        answers.append(said(await typist.answer(texts[-1])))
    await typist.begin("whole", "off", **sampling)
    assert [said(await typist.answer(text)) for text in texts] == answers


@pytest.mark.parametrize("sampling", [{}, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("number", range(6))
async def test_whatever_is_typed_an_answer_with_tools_is_that_of_a_text_sent_whole(
    typist: Typist, number: int, sampling: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first call is demanded, and drafts have run it or not."""
    places = {"type": "object", "properties": {"place": {"enum": ["here", "there", "nowhere"]}}, "required": ["place"]}
    monkeypatch.setitem(SERVER_TOOLS, "look", replace(CALCULATOR, name="look", parameters=places))
    rng = random.Random(number)

    async def work(job: ToolJob) -> None:
        await asyncio.sleep(rng.choice([0.0, 0.01, 0.1]))
        await typist.post(ToolResult(job.call, job.attempt, f"seen: {job.arguments}", "", 1.0, 2.0))

    monkeypatch.setattr(typist.node.tools._queue, "send", work)
    sampling = sampling | {"seed": number}
    server = {"type": "mcp", "server_label": "midstream", "require_approval": "never", "allowed_tools": ["look"]}
    tools: dict[str, Any] = {
        "tools": [server],
        "tool_choice": {"type": "mcp", "server_label": "midstream", "name": "look"},
    }
    await typist.begin("typed", "draft", 2 * ANSWER_TOKENS, **sampling)
    await typist.configure(**tools)
    text = await Script(typist, rng).turn()
    await asyncio.sleep(rng.choice([0.0, 0.05, 0.3]))
    drafted = (await typist.answer(text))["response.done"]["response"]
    await typist.begin("whole", "off", 2 * ANSWER_TOKENS, **sampling)
    await typist.configure(**tools)
    whole = (await typist.answer(text))["response.done"]["response"]
    told = [[(item.get("content"), item.get("arguments")) for item in answer["output"]] for answer in (drafted, whole)]
    assert told[0] == told[1]
    assert drafted["usage"]["output_tokens"] == whole["usage"]["output_tokens"]
    assert "look" in str(whole["output"])


async def test_a_hit_has_nothing_to_compute_before_its_first_token(typist: Typist) -> None:
    await typist.begin("typed", "draft")
    await typist.drafted(QUESTION, 3)
    answer = await typist.answer(QUESTION)
    assert answer["midstream.turn"]["draft"] == "promoted"
    assert answer["midstream.turn"]["draft_tokens"] >= 3
    have, all_ = cached(answer)
    assert have == all_
    assert answer["response.done"]["response"]["usage"]["output_tokens"] == ANSWER_TOKENS


async def test_what_a_draft_had_right_is_verified_in_one_pass(typist: Typist) -> None:
    """The same text with another limit: not the same answer, but it begins in the same way."""
    await typist.begin("typed", "draft")
    await typist.drafted(QUESTION, ANSWER_TOKENS)
    answer = await typist.answer(QUESTION, max_output_tokens=ANSWER_TOKENS + 4)
    turn = answer["midstream.turn"]
    assert (turn["draft"], turn["draft_tokens"], turn["draft_wasted_tokens"]) == ("partly_used", ANSWER_TOKENS, 0)
    await typist.begin("whole", "off")
    assert said(await typist.answer(QUESTION, max_output_tokens=ANSWER_TOKENS + 4)) == said(answer)


async def test_without_a_seed_drafts_of_two_turns_differ(typist: Typist) -> None:
    await typist.begin("typed", "draft", **SAMPLED)
    await typist.drafted(QUESTION)
    first = await typist.answer(QUESTION)
    await typist.begin("typed again", "draft", **SAMPLED)
    await typist.drafted(QUESTION)
    second = await typist.answer(QUESTION)
    assert first["midstream.turn"]["draft"] == second["midstream.turn"]["draft"] == "promoted"
    assert said(first) != said(second)


@pytest.mark.parametrize("state", ["begun", "speaking", "complete"])
@pytest.mark.parametrize("end", ["edit", "clear", "off", "disconnect", "send", "send other", "cancel", "close"])
async def test_nothing_is_left_of_a_draft(
    fmt: ChatFormat, engine: Engine, client: redis.Redis, redis_url: str, end: str, state: str
) -> None:
    options = OPTIONS | {"max_drafts": 1, "max_output_tokens": LONG_ANSWER}
    async with running_node(fmt, redis_url, engine.path, "tiny", **options) as node:
        typist = Typist(node)
        await node.link.client(LIMIT_S)
        typist.listen()
        await typist.begin("typed", "draft", ANSWER_TOKENS if state == "complete" else LONG_ANSWER)
        await typist.drafted(QUESTION, {"begun": 0, "speaking": 1, "complete": ANSWER_TOKENS}[state])
        if end == "edit":
            await typist.replace("Something else")
        elif end == "clear":
            await typist.send("input_text_buffer.clear")
        elif end == "off":
            await typist.send("session.update", session={"type": "realtime", "midstream": {"strategy": "off"}})
        elif end == "disconnect":
            await typist.close_socket()
        elif end in ("send", "send other"):
            await typist.ask(QUESTION if end == "send" else "Another", max_output_tokens=LONG_ANSWER)
        elif end == "cancel":
            await typist.send("input_text_buffer.commit", text=QUESTION)
            await typist.send("response.create")
            await typist.events_until("response.created")
            await typist.send("response.cancel")
            await typist.events_until("response.done")
        if end != "close":
            assert (await idle(typist.client, 1)).contexts == 1
    left = await EngineClient.connect(engine.path, LIMIT_S)
    stats = await idle(left, 0)
    assert stats.blocks_running == stats.blocks_idle == stats.blocks_held == 0
    await left.aclose()


async def idle(client: EngineClient, contexts: int) -> m.Stats:
    """The gauges once nothing runs and so many contexts are open."""
    async with asyncio.timeout(LIMIT_S):
        while (stats := await gauges(client)).contexts != contexts or stats.running or stats.waiting:
            pass
    return stats


@pytest.fixture
def start_engine(folder: Path, tmp_path: Path) -> Iterator[Callable[[], Engine]]:
    """Starts engines, one after the other on the same socket; none outlives the test."""
    engines: list[Engine] = []

    def start() -> Engine:
        engines.append(Engine(folder, tmp_path / "engine.sock"))
        return engines[-1]

    yield start
    for engine in engines:
        if engine.process.poll() is None:
            engine.stop()


async def test_an_engine_that_dies_takes_the_draft_with_it_and_not_the_answer(
    start_engine: Callable[[], Engine], fmt: ChatFormat, client: redis.Redis, redis_url: str
) -> None:
    engine = start_engine()
    options = OPTIONS | {"max_output_tokens": LONG_ANSWER}
    async with running_node(fmt, redis_url, engine.path, "tiny", **options) as node:
        typist = Typist(node)
        await node.link.client(LIMIT_S)
        typist.listen()
        await typist.begin("whole", "off", LONG_ANSWER)
        expected = said(await typist.answer(QUESTION))
        await typist.begin("typed", "draft", LONG_ANSWER)
        for when in ("before", "after"):
            await typist.drafted(QUESTION, 3)
            if when == "before":
                engine.stop()
                await typist.events_until("midstream.draft.discarded")
            await typist.send("input_text_buffer.commit", text=QUESTION)
            await typist.send("response.create")
            if when == "after":
                await typist.events_until("response.output_text.delta")
                engine.stop()
            engine = await asyncio.to_thread(start_engine)
            events = await typist.events_until("response.done")
            assert events[-1]["response"]["output"][0]["content"][0]["text"] == expected
            await typist.begin(f"typed {when}", "draft", LONG_ANSWER)
            typist.listen()
