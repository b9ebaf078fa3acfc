"""`midstream bench verbs`: random verbs with random cancels on a tiny model, looking for lost blocks.

Two models with small pools, so that KV is taken away, copied and evicted all the time. At every idle point each block
must be free, cached under the key of what it holds, or held by exactly the contexts that refer to it; at the end
everything is closed and all blocks must be free again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from bench.random_policy import RandomPolicy
from bench.random_verbs import RandomVerbs
from engine import messages as m
from engine.admission import Admission
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
LINK_BYTES_PER_S = 3e6
IDLE_EVERY = 200


@dataclass
class Report:
    """`leaked` blocks were not free after everything was closed."""

    verbs: int = 0
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
    seconds: float = 0.0


def run(count: int, seed: int = 1, progress: Callable[[int], None] = lambda done: None) -> dict[str, Any]:
    """Raises `AssertionError` at the first idle point whose blocks do not add up."""
    threads = torch.get_num_threads()
    # A model this small is done before a second thread has woken up.
    torch.set_num_threads(1)
    try:
        return asdict(_run(count, seed, progress))
    finally:
        torch.set_num_threads(threads)


def _run(count: int, seed: int, progress: Callable[[int], None]) -> Report:
    core = make_core(run_ahead=bool(seed % 2))
    verbs = RandomVerbs(seed, contexts=CONTEXTS, most=MOST_CONTEXTS, models=len(POOLS), vocab=VOCAB)
    report, started = Report(), time.perf_counter()
    for number in range(1, count + 1):
        core.apply(verbs.next())
        for _ in range(verbs.steps()):
            _step(core, verbs, report)
        if number % IDLE_EVERY == 0:
            _settle(core, verbs, report)
            progress(number)
    for context in range(CONTEXTS):
        core.apply(m.Close(context))
    _settle(core, verbs, report)
    report.verbs = count
    report.leaked = sum(POOLS) - core.stats().blocks_free
    counters = core.counters
    report.preemptions, report.accepted_tokens = counters.preemptions, counters.accepted_tokens
    report.prefix_hit_tokens = counters.prefix_hit_tokens
    report.swapped_out_tokens, report.swapped_in_tokens = counters.swapped_out_tokens, counters.swapped_in_tokens
    report.recomputed_tokens = counters.recomputed_tokens
    report.seconds = time.perf_counter() - started
    return report


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
