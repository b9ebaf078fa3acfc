"""`midstream bench step`: where the time of one decode step goes, part by part.

The engine core runs in this process with the model and settings of the engine process; its parts are timed from
outside, so production code carries no stopwatch. Overhead is all that is neither the model nor sampling: scheduler,
lists and arrays for the kernels, keeping tokens, encoding them for the host. What the model's part read and computed at
least is given as rates, to compare with what the machine can do.
"""

from __future__ import annotations

import gc
import json
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.engine import FIRST_TEXT_TOKEN, LAST_TEXT_TOKEN, PROMPT_TOKENS
from bench.step_cost import step_cost
from engine import messages as m
from engine import served_model
from engine.core import EngineCore
from engine.model.loader import prepare_model
from engine.model.sampler import Sampled
from engine.model.weights import NativeConfig, UnsupportedModel
from engine.settings import EngineSettings
from engine.startup import build_engine

WARM_UP_STEPS = 5


@dataclass(frozen=True)
class StepProfile:
    """Medians over the decode steps of so many sequences, in seconds; `runner` and `weights` as in `ModelInfo`."""

    runner: str
    weights: str
    sequences: int
    steps: int
    total_s: float
    plan_s: float
    """What the step computes."""
    batch_s: float
    """Sequences and rows for the runner."""
    runner_python_s: float
    """The runner outside its kernels (native runner only; the transformers runner counts as `model_s` as a whole)."""
    model_s: float
    sampling_s: float
    """On a GPU also the wait for the model, whose own part is then only its launch."""
    commit_s: float
    """Tokens kept, items made."""
    encode_s: float
    """Items to bytes for the host."""
    other_s: float
    overhead_s: float
    overhead_p95_s: float


def run(sequences: Sequence[int], steps: int, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """A `StepProfile` for each number of sequences, of the model that `MIDSTREAM_*` names; with `StepCost` and rates if
    the native runner knows the model. Raises `loader.ModelError`."""
    settings = EngineSettings()
    core, _ = build_engine(settings, lambda stage, done: None, say)
    config = _config(settings)
    gc.collect()
    gc.freeze()
    try:
        return [_profile(core, config, count, steps) for count in sequences]
    finally:
        gc.unfreeze()
        for model in core.models:
            model.runner.close()


def write(profiles: list[dict[str, Any]], file: Path) -> None:
    file.write_text(json.dumps(profiles, indent=2) + "\n")


class Stopwatch:
    """Seconds spent in the functions it watches, by name; each of them is put back when `stack` closes."""

    def __init__(self, stack: ExitStack) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._stack = stack

    def watch(self, owner: Any, name: str, key: str) -> None:
        original = getattr(owner, name)

        def timed(*arguments: Any, **options: Any) -> Any:
            started = time.perf_counter()
            try:
                return original(*arguments, **options)
            finally:
                self.seconds[key] += time.perf_counter() - started

        setattr(owner, name, timed)
        self._stack.callback(setattr, owner, name, original)

    def lap(self) -> dict[str, float]:
        """What has been spent since the last call."""
        lap, self.seconds = dict(self.seconds), defaultdict(float)
        return lap


def _config(settings: EngineSettings) -> NativeConfig | None:
    try:
        return NativeConfig.from_folder(prepare_model(settings.model, settings.model_cache, lambda stage, done: None))
    except UnsupportedModel:
        return None


def _profile(core: EngineCore, config: NativeConfig | None, sequences: int, steps: int) -> dict[str, Any]:
    rng = random.Random(sequences)
    for context in range(sequences):
        prompt = [rng.randrange(FIRST_TEXT_TOKEN, LAST_TEXT_TOKEN) for _ in range(PROMPT_TOKENS)]
        core.apply(m.Open(context, "foreground"))
        core.apply(m.Append(context, prompt))
        core.apply(m.Generate(context, context, m.GenerateParams(WARM_UP_STEPS + steps + sequences, speculate=False)))
    while core.stats().running < sequences:
        core.step()
    with ExitStack() as stack:
        before = _context_tokens(core)
        laps = _laps(core, _watch(core, stack), steps)
        between = (before + _context_tokens(core)) // 2
    for context in range(sequences):
        core.apply(m.Close(context))
    core.step()
    profile = _summary(core, sequences, laps)
    return {**asdict(profile), **_rates(core, config, profile, between)}


def _context_tokens(core: EngineCore) -> int:
    return sum(context.kv_length for context in core._contexts.values())


def _summary(core: EngineCore, sequences: int, laps: list[dict[str, float]]) -> StepProfile:
    (model, *_) = core.models
    medians = {key: statistics.median(lap[key] for lap in laps) for key in laps[0]}
    overheads = sorted(lap["overhead_s"] for lap in laps)
    return StepProfile(
        runner=model.runner.name,
        weights=model.runner.weights,
        sequences=sequences,
        steps=len(laps),
        overhead_p95_s=overheads[min(len(overheads) * 95 // 100, len(overheads) - 1)],
        **medians,
    )


def _watch(core: EngineCore, stack: ExitStack) -> Stopwatch:
    (model, *_) = core.models
    watch = Stopwatch(stack)
    watch.watch(core, "_plan", "plan")
    watch.watch(core, "_collect", "collect")
    watch.watch(core, "step", "step")
    watch.watch(model, "launch", "launch")
    watch.watch(model.runner, "run", "runner")
    watch.watch(served_model, "sample", "sample")
    watch.watch(Sampled, "read", "read")
    watch.watch(m, "encode_output", "encode")
    kernels = getattr(model.runner, "_kernels", None)
    if kernels is not None:
        watch.watch(kernels, "midstream_run", "kernels")
    return watch


def _laps(core: EngineCore, watch: Stopwatch, steps: int) -> list[dict[str, float]]:
    laps = []
    for _ in range(WARM_UP_STEPS + steps):
        started = time.time()
        m.encode_output(m.Step(started, time.time(), core.step()))
        laps.append(_parts(watch.lap()))
    return laps[WARM_UP_STEPS:]


def _parts(lap: dict[str, float]) -> dict[str, float]:
    model = lap.get("kernels", lap["runner"])
    sampling = lap["sample"] + lap["read"]
    total = lap["step"] + lap["encode"]
    return {
        "total_s": total,
        "plan_s": lap["plan"],
        "batch_s": lap["launch"] - lap["runner"] - lap["sample"],
        "runner_python_s": lap["runner"] - model,
        "model_s": model,
        "sampling_s": sampling,
        "commit_s": lap["collect"] - lap["read"],
        "encode_s": lap["encode"],
        "other_s": lap["step"] - lap["plan"] - lap["launch"] - lap["collect"],
        "overhead_s": total - model - sampling,
    }


def _rates(
    core: EngineCore, config: NativeConfig | None, profile: StepProfile, context_tokens: int
) -> dict[str, float]:
    if config is None:
        return {}
    kv_bytes_per_token = core.models[0].runner.bytes_per_token
    cost = step_cost(config, profile.weights, profile.sequences, context_tokens, kv_bytes_per_token)
    return {
        **asdict(cost),
        "model_bytes_per_s": (cost.weight_bytes + cost.kv_bytes) / profile.model_s,
        "model_flop_per_s": cost.flop / profile.model_s,
    }
