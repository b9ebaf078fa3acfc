"""`midstream bench verbs`: random verbs with random aborts on a tiny model, looking for lost blocks.

Two models with small pools, so that KV is taken away, moved, copied and evicted all the time. At every idle point each
block must be free, cached under the key of what it holds, or held by exactly the contexts that refer to it. Now and
then the connection is lost, which closes everything, and at the end everything is closed: then no block, host slot,
move or hold may be left.

An abort is a cancel, a truncate, a close or a lost connection that meets a context which is about something; it is
counted under what that was.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from bench.random_policy import RandomPolicy
from bench.random_verbs import RandomVerbs
from engine import messages as m
from engine.admission import Admission
from engine.context import Context
from engine.core import EngineCore
from engine.kv.host_tier import make_host_tier
from engine.model.attention import IMPLEMENTATION
from engine.model.runner_transformers import TransformersRunner
from engine.rate_limit import RateLimits
from engine.scheduler import Scheduler
from engine.served_model import ServedModel

VOCAB = 96
CONTEXTS, MOST_CONTEXTS = 12, 10
POOLS = (28, 16)
BLOCK_SIZE = 4
LINK_BYTES_PER_S = 1e6
IDLE_EVERY = 200
DELICATE = {"moving out", "moving in", "waiting to be restored", "reading partial output"}


@dataclass
class Report:
    """After everything was closed, `leaked` blocks were not free, nor `leaked_slots` of the host, and `open_holds` and
    `open_moves` were left."""

    verbs: int = 0
    aborts: int = 0
    aborts_while: dict[str, int] = field(default_factory=dict)
    aborts_by: dict[str, int] = field(default_factory=dict)
    disconnects: int = 0
    refused: int = 0
    generations: int = 0
    cancelled: int = 0
    idle_points: int = 0
    preemptions: int = 0
    swapped_out_tokens: int = 0
    swapped_in_tokens: int = 0
    recomputed_tokens: int = 0
    prefix_hit_tokens: int = 0
    accepted_tokens: int = 0
    leaked: int = 0
    leaked_slots: int = 0
    open_moves: int = 0
    open_holds: int = 0
    seconds: float = 0.0


def run(
    count: int, seed: int = 1, progress: Callable[[int], None] = lambda done: None, *, aborts: int = 0
) -> dict[str, Any]:
    """At least `count` verbs, and more until there were `aborts`. Raises `AssertionError` at the first idle point whose
    blocks do not add up."""
    threads = torch.get_num_threads()
    # A model this small is done before a second thread has woken up.
    torch.set_num_threads(1)
    try:
        return asdict(_run(count, aborts, seed, progress))
    finally:
        torch.set_num_threads(threads)


def _run(count: int, aborts: int, seed: int, progress: Callable[[int], None]) -> Report:
    core = make_core(run_ahead=bool(seed % 2))
    verbs = RandomVerbs(seed, contexts=CONTEXTS, most=MOST_CONTEXTS, models=len(POOLS), vocab=VOCAB)
    report, started = Report(), time.perf_counter()
    while report.verbs < count or report.aborts < aborts:
        report.verbs += 1
        if verbs.is_cut_off():
            _disconnect(core, verbs, report)
        command = verbs.next([context.id for context in core.contexts if _state(context) in DELICATE])
        _note_abort(core, command, report)
        core.apply(command)
        for _ in range(verbs.steps()):
            _step(core, verbs, report)
        if report.verbs % IDLE_EVERY == 0:
            _settle(core, verbs, report)
            progress(report.verbs)
    for context in range(CONTEXTS):
        core.apply(m.Close(context))
    _settle(core, verbs, report)
    _look_for_leaks(core, report)
    counters = core.counters
    report.preemptions, report.accepted_tokens = counters.preemptions, counters.accepted_tokens
    report.prefix_hit_tokens = counters.prefix_hit_tokens
    report.swapped_out_tokens, report.swapped_in_tokens = counters.swapped_out_tokens, counters.swapped_in_tokens
    report.recomputed_tokens = counters.recomputed_tokens
    report.seconds = time.perf_counter() - started
    return report


def _disconnect(core: EngineCore, verbs: RandomVerbs, report: Report) -> None:
    """Everything is closed at once; whoever comes next takes the same ids, at times while moves still end."""
    for context in core.contexts:
        _count_abort(context, "disconnect", report)
    core.close_all()
    report.disconnects += 1
    if report.disconnects % 2:
        _settle(core, verbs, report)
        _look_for_leaks(core, report)


def _look_for_leaks(core: EngineCore, report: Report) -> None:
    report.leaked += sum(POOLS) - core.stats().blocks_free
    report.leaked_slots += core.stats().blocks_host
    report.open_moves += sum(model.tiers.is_moving for model in core.models)
    report.open_holds += core.hold_count


def _note_abort(core: EngineCore, command: m.Command, report: Report) -> None:
    if isinstance(command, m.Cancel | m.Truncate | m.Close):
        for context in core.contexts:
            if context.id == command.context:
                _count_abort(context, type(command).__name__.lower(), report)


def _count_abort(context: Context, by: str, report: Report) -> None:
    state = _state(context)
    if state is not None:
        report.aborts += 1
        report.aborts_while[state] = report.aborts_while.get(state, 0) + 1
        report.aborts_by[by] = report.aborts_by.get(by, 0) + 1


def _state(context: Context) -> str | None:
    """What an abort interrupts; None: nothing."""
    moves = {place.block is None for _, place in context.parked.items() if place.move is not None}
    if moves:
        return "moving in" if True in moves else "moving out"
    if context.held:
        return "reading partial output" if context.pending else "held"
    if context.is_restoring:
        return "waiting to be restored"
    if context.generation is not None:
        return "generating" if context.generation.output_tokens else "in the prompt"
    return "in the prompt" if context.pending else None


def make_core(*, run_ahead: bool) -> EngineCore:
    """Two tiny random models."""
    clock = Ticks()
    models = []
    for index, blocks in enumerate(POOLS):
        torch.manual_seed(index)
        config = LlamaConfig(
            vocab_size=VOCAB,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=128,
            initializer_range=0.3,
        )
        causal_lm: Any = AutoModelForCausalLM
        model = causal_lm.from_config(config, dtype=torch.float32, attn_implementation=IMPLEMENTATION)
        runner = TransformersRunner(model.eval(), blocks, BLOCK_SIZE)
        swapper = make_host_tier(runner.kv_planes, blocks // 2, gbps=LINK_BYTES_PER_S * 1e-9, clock=clock)
        models.append(ServedModel(f"tiny {index}", runner, swapper=swapper, policy=RandomPolicy(index)))
    scheduler = Scheduler(24, background_step_tokens=8, limits=RateLimits(0.0, 0.0, clock()), clock=clock)
    return EngineCore(models, scheduler, Admission(MOST_CONTEXTS, 6, 200), run_ahead=run_ahead, clock=clock)


class Ticks:
    """Time that goes by in equal steps, so that a run is repeated exactly by its seed."""

    def __init__(self) -> None:
        self._now = 1e9

    def __call__(self) -> float:
        self._now += 1e-3
        return self._now


def _settle(core: EngineCore, verbs: RandomVerbs, report: Report) -> None:
    while core.has_work:
        _step(core, verbs, report)
    core.check_integrity()
    report.idle_points += 1


def _step(core: EngineCore, verbs: RandomVerbs, report: Report) -> None:
    items = core.step()
    verbs.saw(items)
    for item in items:
        report.refused += isinstance(item, m.Failed)
        if isinstance(item, m.Finished):
            assert item.reason != "failed"
            report.generations += 1
            report.cancelled += item.reason == "cancelled"
