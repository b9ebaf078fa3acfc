"""`midstream profile`: how long steps and moves take on this device with this model, measured and fitted.

Steps run on the runner of the engine's own start-up, on KV that nobody wrote: what it holds does not change how long
reading it takes. Moves go through the engine's own host tier; with a modelled link they are the model's.
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from engine.interception import waste
from engine.interception.profile import MovePoint, Profile, StepPoint, error, fit, save
from engine.kv.swap import Direction, Swapper
from engine.model.batch import Batch, SequenceInput
from engine.served_model import ServedModel
from engine.settings import EngineSettings
from engine.startup import build_engine

_QUERY_TOKENS = (1, 4, 16, 64, 128, 256, 512, 1024, 2048)
_CONTEXT_TOKENS = (0, 512, 2048, 8192)
_MOVED_BLOCKS = (1, 4, 16, 64, 256)
_LOADS = ((0, 0), (16, 12_800), (64, 51_200), (200, 160_000))


@dataclass(frozen=True)
class Report:
    """`error` is the mean relative error over all steps. `modelled_link`: moves took what a setting says."""

    profile: Profile
    error: float
    modelled_link: bool
    steps: list[StepPoint]
    moves_out: list[MovePoint]
    moves_in: list[MovePoint]
    break_even_s: list[dict[str, float]]
    """Of 1,000 tokens beside running contexts."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def run(repeats: int, progress: Callable[[str], None]) -> tuple[Report, Path]:
    """Measures the model of the settings; returns the report and where its profile was stored. Raises
    `loader.ModelError`, and `ProfileError` when it cannot be fitted."""
    settings = EngineSettings()
    core, ready = build_engine(settings, lambda stage, fraction: None, progress)
    model = core.models[0]
    name = f"{model.name}-{ready.device}-{ready.dtype}-{model.runner.weights}"
    swapper = model.tiers.swapper
    try:
        steps = _measure_steps(model, repeats, progress)
        outward = _measure_moves(swapper, "out", repeats, model) if swapper is not None else []
        inward = _measure_moves(swapper, "in", repeats, model) if swapper is not None else []
        modelled = swapper is not None and swapper.stats.modelled
    finally:
        model.tiers.close()
    profile = fit(name, steps, outward + inward)
    path = profile_path(settings.model_cache, name)
    save(profile, path)
    return Report(profile, error(profile, steps), modelled, steps, outward, inward, break_even(profile)), path


def profile_path(model_cache: Path, name: str) -> Path:
    """Where the profile of that model, device, dtype and weights is kept."""
    return model_cache.expanduser() / "profiles" / (re.sub(r"[^A-Za-z0-9.]+", "-", name) + ".json")


def break_even(profile: Profile) -> list[dict[str, float]]:
    """Pauses beyond which 1,000 tokens are better dropped than kept, by load."""
    return [
        {"queries": q, "others": others, "seconds": waste.break_even_s(profile, 1000, q, others)}
        for q, others in _LOADS
    ]


def _measure_steps(model: ServedModel, repeats: int, progress: Callable[[str], None]) -> list[StepPoint]:
    runner = model.runner
    points = []
    for context in _CONTEXT_TOKENS:
        for queries in _QUERY_TOKENS:
            if context + queries > model.max_context:
                continue
            tokens = [i % min(runner.vocab_size, 1000) for i in range(queries)]
            blocks = list(range(-(-(context + queries) // runner.block_size)))
            batch = Batch([SequenceInput(tokens, context, blocks, 1)])
            seconds = statistics.median(_time_step(model, batch) for _ in range(repeats + 1))
            points.append(StepPoint(queries, context + queries, seconds))
        progress(f"measured steps over contexts of {context} tokens")
    return points


def _time_step(model: ServedModel, batch: Batch) -> float:
    _synchronize()
    started = time.perf_counter()
    model.runner.run(batch)
    _synchronize()
    return time.perf_counter() - started


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _measure_moves(swapper: Swapper, direction: Direction, repeats: int, model: ServedModel) -> list[MovePoint]:
    start = swapper.start_out if direction == "out" else swapper.start_in
    points = []
    for count in _MOVED_BLOCKS:
        if count > min(swapper.slots.free_count, model.pool.count):
            break
        slots = swapper.slots.allocate(count)
        pairs = list(zip(range(count), slots, strict=True))
        seconds = []
        for _ in range(repeats + 1):
            traffic = swapper.stats.outward if direction == "out" else swapper.stats.inward
            before = traffic.seconds
            start(pairs)
            while not swapper.poll():
                time.sleep(swapper.wait_seconds())
            seconds.append(traffic.seconds - before)
        swapper.slots.release(slots)
        points.append(MovePoint(count * model.runner.block_size, statistics.median(seconds)))
    return points
