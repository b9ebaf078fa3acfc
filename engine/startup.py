"""From settings to a warm engine: device, dtype, sizes, models, first steps."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from engine import messages as m
from engine.admission import Admission
from engine.core import EngineCore
from engine.model.batch import Runner
from engine.model.grammar import GrammarCompiler
from engine.model.loader import Progress, load_model, model_name, prepare_model
from engine.model.runner_transformers import TransformersRunner, kv_bytes_per_token
from engine.rate_limit import RateLimits
from engine.scheduler import Scheduler
from engine.served_model import ServedModel
from engine.settings import EngineSettings

_CPU_KV_TOKENS = 64 * 1024
_MEMORY_SHARE = {"cpu": 0.4, "cuda": 0.85}
_STEP_TOKENS = {"cpu": 256, "cuda": 2048}


def build_engine(
    settings: EngineSettings, progress: Progress, log: Callable[[str], None]
) -> tuple[EngineCore, m.Ready]:
    """Loads and warms up. Raises `loader.ModelError`."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    threads = settings.torch_threads or len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    dtype = _dtype(settings, device)
    names = [settings.model, *([settings.thinking_model] if settings.thinking_model else [])]
    models = [
        _serve(name, 1 / (len(names) - i), settings, dtype, device, threads, progress) for i, name in enumerate(names)
    ]
    now = time.time()
    core = EngineCore(
        models,
        Scheduler(
            settings.step_tokens or _STEP_TOKENS[device.type],
            background_step_tokens=settings.background_step_tokens,
            limits=RateLimits(settings.background_tokens_per_s, settings.session_background_tokens_per_s, now),
            clock=time.time,
        ),
        Admission(settings.max_contexts, settings.max_waiting, settings.max_waiting_tokens),
        speculate=settings.speculate,
        run_ahead=device.type == "cuda",
        log=log,
    )
    progress("warming up", 0.0)
    for index in range(len(models)):
        _warm_up(core, index)
    progress("warming up", 1.0)
    ready = m.Ready(
        epoch=uuid.uuid4().hex,
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        dtype=str(dtype).removeprefix("torch."),
        models=[model.info for model in models],
    )
    return core, ready


def _serve(
    name: str,
    share: float,
    settings: EngineSettings,
    dtype: torch.dtype,
    device: torch.device,
    threads: int,
    progress: Progress,
) -> ServedModel:
    """One model with its runner; its KV pool gets `share` of the memory that is left."""
    folder = prepare_model(name, settings.model_cache, progress)
    model = load_model(folder, dtype, device, progress)
    blocks = _kv_tokens(settings, share, model.config, dtype, device) // settings.kv_block_size
    runner: Runner = TransformersRunner(model, blocks, settings.kv_block_size)
    return ServedModel(model_name(name), runner, GrammarCompiler.from_folder(folder, runner.vocab_size, threads))


def _dtype(settings: EngineSettings, device: torch.device) -> torch.dtype:
    if settings.dtype != "auto":
        return torch.float32 if settings.dtype == "float32" else torch.bfloat16
    fast = device.type == "cuda" or torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()
    return torch.bfloat16 if fast else torch.float32


def _kv_tokens(settings: EngineSettings, share: float, config: Any, dtype: torch.dtype, device: torch.device) -> int:
    if settings.kv_tokens is not None:
        return settings.kv_tokens
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else _free_memory()
    fitting = int(free * share * _MEMORY_SHARE[device.type]) // kv_bytes_per_token(config, dtype)
    return fitting if device.type == "cuda" else max(min(fitting, _CPU_KV_TOKENS), 1024)


def _free_memory() -> int:
    """Bytes that new allocations can have; half of the machine where Linux does not say."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _warm_up(core: EngineCore, index: int) -> None:
    """One prefill and two decodes, so that the first user does not pay for lazy initialisation."""
    core.apply(m.Open(0, "foreground", index))
    core.apply(m.Append(0, [i % 16 for i in range(min(64, core.models[index].max_context - 4))]))
    core.apply(m.Generate(0, 0, m.GenerateParams(max_tokens=3)))
    while core.has_work:
        core.step()
    core.apply(m.Close(0))
    core.step()
