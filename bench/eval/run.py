"""Runs an evaluation: every question under every variant, over the real WebSocket, one at a time."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import websockets
from prometheus_client.parser import text_string_to_metric_families

from bench.eval.extract import extract, is_right
from bench.eval.log import Log, Outcome, Settings
from bench.eval.questions import Question
from bench.eval.variants import Variant
from bench.server import running_server
from bench.typing.clock import Watch
from bench.typing.driver import Driver, Played
from bench.typing.keystrokes import constant, realistic
from bench.typing.script import Edit, Script
from bench.typing.speech import recognised

Typing = Literal["constant", "realistic", "speech"]
MAX_STRIDE = 4
COUNTERS = ("step_seconds", "prefill_tokens", "decode_tokens", "prefix_hit_tokens")
_METRICS = {
    "step_seconds": "midstream_engine_step_seconds",
    "prefill_tokens": "midstream_engine_prefill_tokens",
    "decode_tokens": "midstream_engine_decode_tokens",
    "prefix_hit_tokens": "midstream_prefix_hit_tokens",
}
# The engine counts twice a second, and a node publishes once a second.
COUNTERS_LATE_S = 1.7


@dataclass(frozen=True)
class Options:
    """`model` and `kv_tokens` are for the server that is started when there is no `url`. The pool is small on purpose:
    when a question comes again under another variant, nothing of it may be left."""

    questions: Sequence[Question]
    variants: Sequence[Variant]
    dataset: str
    cpm: float = 240.0
    typing: Typing = "constant"
    seed: int = 1
    realtime: bool = False
    max_tokens: int = 400
    url: str = ""
    model: str = ""
    kv_tokens: int = 3072


def run(
    options: Options, log_file: Path, on_outcome: Callable[[Outcome | None], None]
) -> tuple[list[Outcome], Settings]:
    """All outcomes, those of an earlier run with the same log included. `on_outcome` hears of each, with None for the
    ones that were there already."""
    with _server(options) as url:
        settings = _settings(options, url)
        log = Log(log_file, settings)
        known = {outcome.key: outcome for outcome in log.read()}
        outcomes = []
        to_do = []
        for question, variant in plan(options.questions, options.variants):
            if (outcome := known.get((question.id, variant))) is not None:
                outcomes.append(outcome)
                on_outcome(None)
            else:
                to_do.append((question, variant))
        if to_do:
            asyncio.run(_warm_up(url, to_do[0][0], options))
        for question, variant in to_do:
            outcome = _counted(url, question, variant, options)
            log.add(outcome)
            outcomes.append(outcome)
            on_outcome(outcome)
        return sorted(outcomes, key=lambda one: options.variants.index(one.variant)), settings


def plan(questions: Sequence[Question], variants: Sequence[Variant]) -> Iterator[tuple[Question, Variant]]:
    """Variants take turns, so that all meet the machine in the same moods; each is some questions behind the one before
    it, so that others were asked since it asked the same."""
    stride = max(1, min(MAX_STRIDE, len(questions) // len(variants)))
    for turn in range(len(questions) + stride * (len(variants) - 1)):
        for place, variant in enumerate(variants):
            index = turn - place * stride
            if 0 <= index < len(questions):
                yield questions[index], variant


def script_of(question: Question, variant: Variant, options: Options) -> Script:
    """What is typed. Where the server does not see it before it is sent, it is sent at once."""
    if not variant.types:
        return Script([Edit(0.0, 0, 0, question.text + question.options_text)])
    match options.typing:
        case "constant":
            script = constant(question.text, options.cpm)
        case "realistic":
            script = realistic(question.text, options.cpm, options.seed)
        case "speech":
            script = recognised(question.text, options.cpm, options.seed)
    return script.ending_with(question.options_text)


@contextlib.contextmanager
def _server(options: Options) -> Iterator[str]:
    if options.url:
        yield options.url
        return
    chosen = {"model": options.model} if options.model else {}
    with running_server(None, kv_tokens=str(options.kv_tokens), **chosen) as server:
        yield server.url


def _settings(options: Options, url: str) -> Settings:
    """What outcomes must have in common to be compared."""
    return {
        "dataset": options.dataset,
        "model": _model(url),
        "typing": options.typing,
        "cpm": options.cpm,
        "seed": options.seed,
        "clock": "real" if options.realtime else "virtual",
        "max_tokens": options.max_tokens,
    }


def _model(url: str) -> str:
    with urllib.request.urlopen(url + "/v1/models", timeout=30) as reply:
        return str(json.load(reply)["data"][0]["id"])


async def _warm_up(url: str, question: Question, options: Options) -> None:
    """Whatever is compiled or allocated at the first answer."""
    await _play(url, replace(question, text="What is 1 + 1?"), Variant("off-direct"), replace(options, max_tokens=8))


def _counted(url: str, question: Question, variant: Variant, options: Options) -> Outcome:
    """One question, with the engine's counters before and after it."""
    before = _counters(url)
    outcome = asyncio.run(_asked(url, question, variant, options))
    time.sleep(COUNTERS_LATE_S)
    after = _counters(url)
    return replace(outcome, engine={name: after[name] - before[name] for name in COUNTERS})


def _counters(url: str) -> dict[str, float]:
    """Sums over all nodes."""
    with urllib.request.urlopen(url + "/metrics", timeout=30) as reply:
        families = {one.name: one for one in text_string_to_metric_families(reply.read().decode())}
    totals = {}
    for name, metric in _METRICS.items():
        samples = families[metric].samples if metric in families else []
        totals[name] = sum(sample.value for sample in samples if sample.name.endswith("_total"))
    return totals


async def _asked(url: str, question: Question, variant: Variant, options: Options) -> Outcome:
    outcome = Outcome(question.id, question.subject, variant, question.answer)
    began = time.monotonic()
    try:
        played = await _play(url, question, variant, options)
    except (RuntimeError, OSError, TimeoutError, websockets.WebSocketException) as error:
        return replace(outcome, error=f"{type(error).__name__}: {error}", wall_s=time.monotonic() - began)
    return replace(_outcome(outcome, question, played), wall_s=round(time.monotonic() - began, 3))


async def _play(url: str, question: Question, variant: Variant, options: Options) -> Played:
    watch = None if options.realtime else Watch()
    async with Driver(url.replace("http", "ws", 1) + "/v1/realtime", watch) as driver:
        await driver.configure(
            instructions=variant.instructions(question.choices),
            max_output_tokens=options.max_tokens,
            midstream=variant.midstream(),
        )
        return await driver.play(script_of(question, variant, options))


def _outcome(outcome: Outcome, question: Question, played: Played) -> Outcome:
    given = extract(played.text, question.choices)
    usage, turn = played.usage, played.turn
    actions = [note["action"] for note in played.notes]
    return replace(
        outcome,
        given=given,
        right=is_right(given, question.answer),
        text=played.text,
        status=played.status,
        latency_s=round(played.latency_s, 4),
        ttft_s=None if played.ttft_s is None else round(played.ttft_s, 4),
        typed_s=round(played.typed_s, 3),
        input_tokens=usage["input_tokens"],
        cached_tokens=usage["input_token_details"]["cached_tokens"],
        output_tokens=usage["output_tokens"],
        prefilled_before_send=turn["prefilled_before_commit"],
        notes=[note["text"] for note in played.notes if note["action"] == "inference"],
        waits=actions.count("wait"),
        discarded_notes=played.discarded_notes,
        drafts=turn["drafts"],
        draft=turn["draft"],
        draft_used_tokens=turn["draft_tokens"],
        draft_wasted_tokens=turn["draft_wasted_tokens"],
        error=None if played.status in ("completed", "incomplete") else f"the response {played.status}",
    )
