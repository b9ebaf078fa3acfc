"""`midstream bench realtime`: what typing ahead saves, and where each millisecond goes.

One server, one run: a question of about 1,000 tokens is typed and sent (strategy `prefill`), and another like it is
sent whole (strategy `off`), in turns; then forced calculator calls. Everything goes over the real WebSocket.
"""

from __future__ import annotations

import asyncio
import json
import platform
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.realtime_client import Answer, RealtimeClient
from bench.server import running_server

ANSWER_TOKENS = 24
KEYS_PER_MESSAGE = 5
CALCULATOR = {"type": "mcp", "server_label": "midstream", "name": "calculator"}
TOOLS = [{"type": "mcp", "server_label": "midstream", "allowed_tools": ["calculator"], "require_approval": "never"}]
SENTENCES = (
    "The harbour has {n} boats, and every boat carries {m} nets of different sizes. ",
    "On day {n} the fishers counted {m} baskets before the rain began. ",
    "The old lighthouse keeper writes down the wind, the tide and the names of all {n} visitors. ",
    "If a net of {m} metres costs {n} coins, the market on the hill is the better place to buy one. ",
)


@dataclass(frozen=True)
class Options:
    """`characters_per_s` is the typing speed; the default is faster than people type, which is the harder case."""

    repeats: int = 5
    question_tokens: int = 1000
    characters_per_s: float = 200.0
    url: str = ""


def run(options: Options) -> dict[str, Any]:
    """The whole report, as it is written to the JSON file."""
    if options.url:
        return asyncio.run(_measure(options.url.replace("http", "ws", 1) + "/v1/realtime", options))
    with running_server() as server:
        return asyncio.run(_measure(server.websocket_url, options))


def write(report: dict[str, Any], file: Path) -> None:
    file.write_text(json.dumps(report, indent=2) + "\n")


def question(index: int, tokens: int) -> str:
    """Different text for every run, so that nothing is cached from the last; about 4.4 characters a token."""
    text = f"Story {index}. "
    number = 0
    while len(text) < tokens * _CHARACTERS_PER_TOKEN:
        text += SENTENCES[number % len(SENTENCES)].format(n=17 * index + number, m=3 * number + 5)
        number += 1
    return text + "In one sentence, what is this story about?"


_CHARACTERS_PER_TOKEN = 3.9


async def _measure(url: str, options: Options) -> dict[str, Any]:
    typed, whole, tools, keystrokes = [], [], [], []
    for index in range(options.repeats + 1):
        # Two texts of the same kind: KV of the first would be there for the second.
        typed_text, whole_text = (question(number, options.question_tokens) for number in (2 * index, 2 * index + 1))
        typed_answer, traces = await _typed(url, typed_text, options)
        whole_answer = await _whole(url, whole_text)
        tool_answer = await _tool(url, index)
        if index:  # the first round warms up
            typed.append(typed_answer)
            whole.append(whole_answer)
            tools.append(tool_answer)
            keystrokes += traces
    decode = statistics.median(_gaps(typed + whole))
    return _report(options, typed, whole, tools, keystrokes, decode)


async def _typed(url: str, text: str, options: Options) -> tuple[Answer, list[dict[str, Any]]]:
    async with RealtimeClient(url) as client:
        await client.configure(midstream={"strategy": "prefill", "events": ["trace"]})
        reader = asyncio.create_task(_drain(client))
        for start in range(0, len(text), KEYS_PER_MESSAGE):
            await client.send("input_text_buffer.append", text=text[start : start + KEYS_PER_MESSAGE])
            await asyncio.sleep(KEYS_PER_MESSAGE / options.characters_per_s)
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
        traces = [event for _, event in client.events if event["type"] == "midstream.trace"]
        await client.send("input_text_buffer.commit", text=text)
        return await client.answer(max_output_tokens=ANSWER_TOKENS), traces


async def _drain(client: RealtimeClient) -> None:
    while True:
        await client.receive()


async def _whole(url: str, text: str) -> Answer:
    async with RealtimeClient(url) as client:
        await client.configure(midstream={"strategy": "off", "events": ["trace"]})
        await client.send("input_text_buffer.commit", text=text)
        return await client.answer(max_output_tokens=ANSWER_TOKENS)


async def _tool(url: str, index: int) -> Answer:
    async with RealtimeClient(url) as client:
        await client.configure(tools=TOOLS, midstream={"strategy": "prefill", "events": ["trace"]})
        await client.send("input_text_buffer.commit", text=f"What is {1234 + index} * {5678 - index}?")
        return await client.answer(max_output_tokens=120, tool_choice=CALCULATOR)


def _gaps(answers: list[Answer]) -> list[float]:
    return [b - a for answer in answers for a, b in zip(answer.token_times, answer.token_times[1:], strict=False)]


def _report(
    options: Options,
    typed: list[Answer],
    whole: list[Answer],
    tools: list[Answer],
    keystrokes: list[dict[str, Any]],
    decode: float,
) -> dict[str, Any]:
    typed_ttft = [answer.ttft_s for answer in typed]
    whole_ttft = [answer.ttft_s for answer in whole]
    limit = 2 * decode + 0.015
    return {
        "machine": {"processor": platform.processor() or platform.machine(), "system": platform.platform()},
        "options": {"repeats": options.repeats, "characters_per_s": options.characters_per_s},
        "question_tokens": statistics.median(answer.response["usage"]["input_tokens"] for answer in typed),
        "cached_tokens": statistics.median(
            answer.response["usage"]["input_token_details"]["cached_tokens"] for answer in typed
        ),
        "decode_step_ms": _ms(decode),
        "ttft_typed_ms": _summary(typed_ttft),
        "ttft_whole_ms": _summary(whole_ttft),
        "ttft_ratio": round(statistics.median(whole_ttft) / statistics.median(typed_ttft), 2),
        "ttft_limit_ms": _ms(limit),
        "within_limit": statistics.median(typed_ttft) <= limit,
        "keystroke_to_engine_ms": _split([_keystroke_parts(trace) for trace in keystrokes]),
        "send_to_first_token_ms": _split([_send_parts(answer) for answer in typed]),
        "tool_result_to_next_token_ms": _split(
            [part for answer in tools if answer.token_times for part in _tool_parts(answer)]
        ),
    }


def _keystroke_parts(trace: dict[str, Any]) -> dict[str, float]:
    """`engine_wait` lasts until a step takes the tokens up (a running step is finished first)."""
    return {
        "web": trace["web_posted_at"] - trace["web_received_at"],
        "redis": trace["host_received_at"] - trace["web_posted_at"],
        "host": trace["engine_asked_at"] - trace["host_received_at"],
        "engine_wait": max(0.0, trace["engine_started_at"] - trace["engine_asked_at"]),
        "engine_step": trace["engine_ended_at"] - trace["engine_started_at"],
    }


def _send_parts(answer: Answer) -> dict[str, float]:
    trace, engine = answer.trace, answer.trace["engine"][0]
    return {
        "client_to_web": trace["web_received_at"] - answer.sent_at,
        "web": trace["web_posted_at"] - trace["web_received_at"],
        "redis": trace["host_received_at"] - trace["web_posted_at"],
        "host": engine["asked_at"] - trace["host_received_at"],
        "engine_finishes_step": engine["received_at"] - engine["asked_at"],
        "engine_queue": engine["first_scheduled_at"] - engine["received_at"],
        "engine_step": engine["first_token_at"] - engine["first_scheduled_at"],
        "host_out": trace["host_token_at"] - engine["first_token_at"],
        "redis_and_web_out": answer.token_times[0] - trace["host_token_at"],
    }


def _tool_parts(answer: Answer) -> list[dict[str, float]]:
    """`engine[0]` is the forced call itself; the generation after it goes on from the result."""
    parts = []
    for resume, engine in zip(answer.trace["resumes"][:1], answer.trace["engine"][1:], strict=False):
        parts.append(
            {
                "redis": resume["host_received_at"] - resume["worker_finished_at"],
                "host": engine["asked_at"] - resume["host_received_at"],
                "engine_finishes_step": engine["received_at"] - engine["asked_at"],
                "engine_queue": engine["first_scheduled_at"] - engine["received_at"],
                "engine_step": engine["first_token_at"] - engine["first_scheduled_at"],
                "host_out": resume["host_token_at"] - engine["first_token_at"],
                # Nothing is said before the forced call, so the first text is what follows its result.
                "redis_and_web_out": answer.token_times[0] - resume["host_token_at"],
            }
        )
    return parts


def _split(parts: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Summary of each part and of their sum."""
    if not parts:
        return {}
    columns = {name: [row[name] for row in parts] for name in parts[0]}
    columns["total"] = [sum(row.values()) for row in parts]
    return {name: _summary(values) for name, values in columns.items()}


def _summary(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {
        "p50": _ms(statistics.median(ordered)),
        "p95": _ms(ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]),
        "max": _ms(ordered[-1]),
    }


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 2)
