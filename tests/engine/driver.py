"""Drives an `EngineCore` synchronously, as the process does, with the checks that every test wants."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from engine import messages as m
from engine.admission import Admission
from engine.core import EngineCore
from engine.interception.policy import Policy
from engine.kv.host_tier import make_host_tier
from engine.model.grammar import GrammarCompiler
from engine.model.loader import load_model
from engine.model.runner_transformers import TransformersRunner
from engine.rate_limit import RateLimits
from engine.scheduler import Scheduler
from engine.served_model import ServedModel


class Driver:
    """Applies commands and runs steps; keeps everything that came out."""

    def __init__(self, core: EngineCore) -> None:
        self.core = core
        self.items: list[m.Item] = []

    def apply(self, *commands: m.Command) -> None:
        for command in commands:
            self.core.apply(command)

    def step(self) -> list[m.Item]:
        items = self.core.step()
        self.items += items
        self.core.check_integrity()
        return items

    def run(self, limit: int = 10_000) -> None:
        """Steps until nothing is left to do; far more steps than that takes is a failure."""
        for _ in range(limit):
            if not self.core.has_work:
                return
            self.step()
        raise AssertionError(f"still busy after {limit} steps")

    def tokens_of(self, generation: int) -> list[int]:
        found = [i.tokens for i in self.items if isinstance(i, m.Tokens) and i.generation == generation]
        return [token for tokens in found for token in tokens]

    def finished(self, generation: int) -> m.Finished:
        return next(i for i in self.items if isinstance(i, m.Finished) and i.generation == generation)

    def of_kind(self, kind: type[m.Item]) -> list[Any]:
        return [item for item in self.items if isinstance(item, kind)]

    def held_tokens(self, context: int) -> list[int]:
        return self.core._contexts[context].tokens


def make_driver(
    model: Any,
    *,
    blocks: int = 256,
    block_size: int = 4,
    host_blocks: int = 0,
    gbps: float | None = None,
    policy: Policy | None = None,
    grammars: GrammarCompiler | None = None,
    clock: Callable[[], float] = time.time,
    **options: Any,
) -> Driver:
    """A driver over a fresh pool; `model` comes from `load_model`."""
    runner = TransformersRunner(model, blocks, block_size)
    tier = make_host_tier(runner.kv_planes, host_blocks, gbps=gbps, clock=clock) if host_blocks else None
    served = ServedModel("tiny", runner, grammars, swapper=tier, policy=policy)
    return Driver(make_core([served], clock=clock, **options))


def make_core(
    models: Sequence[ServedModel],
    *,
    step_tokens: int = 64,
    background_step_tokens: int = 8,
    max_contexts: int = 64,
    max_waiting: int = 256,
    limits: RateLimits | None = None,
    clock: Callable[[], float] = time.time,
    **options: Any,
) -> EngineCore:
    """A core with small limits; `options` are those of `EngineCore`."""
    scheduler = Scheduler(step_tokens, background_step_tokens=background_step_tokens, limits=limits, clock=clock)
    return EngineCore(models, scheduler, Admission(max_contexts, max_waiting, 1_000_000), clock=clock, **options)


def load(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    return load_model(folder, dtype, torch.device("cpu"), lambda stage, fraction: None)


def load_reference(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    """The same weights with transformers' own attention and cache."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa")
    return model.eval()


def grammars_of(folder: Path, vocab_size: int) -> GrammarCompiler:
    compiler = GrammarCompiler.from_folder(folder, vocab_size, threads=2)
    assert compiler is not None
    return compiler


@torch.inference_mode()
def reference_greedy(model: Any, prompt: Sequence[int], count: int, stops: Sequence[int] = ()) -> list[int]:
    """What `transformers.generate` writes after `prompt`, without the stop token."""
    output = model.generate(
        torch.tensor([list(prompt)]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        max_new_tokens=count,
        do_sample=False,
        eos_token_id=list(stops) or None,
        pad_token_id=0,
    )
    new: list[int] = output[0, len(prompt) :].tolist()
    return new[:-1] if stops and new and new[-1] in stops else new
