"""`midstream bench verbs`: random verbs with random cancels on a tiny model, looking for lost blocks.

Two models with small pools, so that KV is taken away, copied and evicted all the time. At every idle point each block
must be free, cached under the key of what it holds, or held by exactly the contexts that refer to it; at the end
everything is closed and all blocks must be free again.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from engine import messages as m
from engine.admission import Admission
from engine.core import EngineCore
from engine.model.attention import IMPLEMENTATION
from engine.model.runner_transformers import TransformersRunner
from engine.rate_limit import RateLimits
from engine.scheduler import Scheduler
from engine.served_model import ServedModel

VOCAB = 96
CONTEXTS = 12
POOLS = (28, 16)
BLOCK_SIZE = 4
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
    verbs, report, started = Verbs(seed), Report(), time.perf_counter()
    for number in range(1, count + 1):
        core.apply(verbs.next())
        for _ in range(verbs.steps()):
            _note(report, core.step())
        if number % IDLE_EVERY == 0:
            _settle(core, report)
            progress(number)
    for context in range(CONTEXTS):
        core.apply(m.Close(context))
    _settle(core, report)
    report.verbs = count
    report.leaked = sum(POOLS) - core.stats().blocks_free
    counters = core.counters
    report.preemptions, report.accepted_tokens = counters.preemptions, counters.accepted_tokens
    report.prefix_hit_tokens = counters.prefix_hit_tokens
    report.seconds = time.perf_counter() - started
    return report


def make_core(*, run_ahead: bool) -> EngineCore:
    """Two tiny random models."""
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
        models.append(ServedModel(f"tiny {index}", TransformersRunner(model.eval(), blocks, BLOCK_SIZE)))
    limits = RateLimits(0.0, 0.0, time.time())
    scheduler = Scheduler(24, background_step_tokens=8, limits=limits, clock=time.time)
    return EngineCore(models, scheduler, Admission(CONTEXTS - 2, 6, 200), run_ahead=run_ahead)


class Verbs:
    """An endless row of commands, most of them legal."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._generations = 0

    def steps(self) -> int:
        """How many steps to run before the next command."""
        return self._rng.choice([0, 0, 1, 1, 2, 4])

    def next(self) -> m.Command:
        rng, context = self._rng, self._rng.randrange(CONTEXTS)
        kind = rng.randrange(100)
        if kind < 14:
            return m.Open(context, self._priority(), rng.choice([0, 0, 1, 1, 2]), rng.randrange(3))
        if kind < 36:
            return m.Append(context, self._tokens(12))
        if kind < 56:
            return m.Generate(context, self._generation(), self._params())
        if kind < 66:
            return m.Cancel(context)
        if kind < 76:
            return m.Truncate(context, rng.choice([0, 1, 3, 4, 5, 8, 13, 30, 99]))
        if kind < 82:
            return m.Fork(context, rng.randrange(CONTEXTS), self._priority())
        if kind < 86:
            return m.Hold(context, rng.choice(["tool", "idle"]), rng.random())
        if kind < 92:
            params = self._params() if rng.random() < 0.7 else None
            return m.Resume(context, self._tokens(8), self._generation(), params)
        return m.SetPriority(context, self._priority()) if kind < 95 else m.Close(context)

    def _priority(self) -> m.Priority:
        return self._rng.choice(["foreground", "background"])

    def _generation(self) -> int:
        self._generations += 1
        return self._generations

    def _tokens(self, most: int) -> list[int]:
        """From few, so that texts begin alike and repeat themselves; sometimes none of the model's."""
        if self._rng.random() < 0.01:
            return [self._rng.choice([-1, VOCAB, 1 << 40])]
        return [self._rng.choice([5, 6, 7]) for _ in range(self._rng.randrange(most))]

    def _params(self) -> m.GenerateParams:
        rng = self._rng
        sampling = m.Sampling(
            temperature=rng.choice([0.0, 0.0, 0.8, float("nan") if rng.random() < 0.02 else 1.0]),
            top_p=rng.choice([1.0, 0.9]),
            seed=rng.randrange(100),
            repetition_penalty=rng.choice([1.0, 1.0, 1.2]),
            frequency_penalty=rng.choice([0.0, 0.0, 0.5]),
        )
        return m.GenerateParams(
            max_tokens=rng.randrange(30),
            sampling=sampling,
            stop_token_ids=rng.choice([[], [rng.randrange(VOCAB)]]),
            top_logprobs=rng.choice([None, None, 2]),
            draft=self._tokens(20) if rng.random() < 0.3 else [],
            speculate=rng.random() < 0.7,
        )


def _settle(core: EngineCore, report: Report) -> None:
    while core.has_work:
        _note(report, core.step())
    core.check_integrity()
    report.idle_points += 1


def _note(report: Report, items: list[m.Item]) -> None:
    for item in items:
        report.refused += isinstance(item, m.Failed)
        if isinstance(item, m.Finished):
            assert item.reason != "failed"
            report.generations += 1
            report.cancelled += item.reason == "cancelled"
