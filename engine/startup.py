"""From settings to a warm engine: device, dtype, sizes, model, first steps."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from engine import messages as m
from engine.core import EngineCore
from engine.model.grammar import GrammarCompiler
from engine.model.loader import Progress, load_model, model_name, prepare_model
from engine.model.runner_transformers import TransformersRunner, kv_bytes_per_token
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
    folder = prepare_model(settings.model, settings.model_cache, progress)
    model = load_model(folder, dtype, device, progress)
    blocks = _kv_tokens(settings, model.config, dtype, device) // settings.kv_block_size
    runner = TransformersRunner(model, blocks, settings.kv_block_size)
    progress("warming up", 0.0)
    core = EngineCore(
        runner,
        step_tokens=settings.step_tokens or _STEP_TOKENS[device.type],
        background_step_tokens=settings.background_step_tokens,
        max_contexts=settings.max_contexts,
        grammars=GrammarCompiler.from_folder(folder, runner.vocab_size, threads),
        log=log,
    )
    _warm_up(core)
    progress("warming up", 1.0)
    ready = m.Ready(
        epoch=uuid.uuid4().hex,
        model=model_name(settings.model),
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        dtype=str(dtype).removeprefix("torch."),
        max_context=core.max_context,
        block_size=settings.kv_block_size,
        kv_blocks=blocks,
        bytes_per_token=runner.bytes_per_token,
    )
    return core, ready


def _dtype(settings: EngineSettings, device: torch.device) -> torch.dtype:
    if settings.dtype != "auto":
        return torch.float32 if settings.dtype == "float32" else torch.bfloat16
    fast = device.type == "cuda" or torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()
    return torch.bfloat16 if fast else torch.float32


def _kv_tokens(settings: EngineSettings, config: Any, dtype: torch.dtype, device: torch.device) -> int:
    if settings.kv_tokens is not None:
        return settings.kv_tokens
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else _free_memory()
    fitting = int(free * _MEMORY_SHARE[device.type]) // kv_bytes_per_token(config, dtype)
    return fitting if device.type == "cuda" else max(min(fitting, _CPU_KV_TOKENS), 1024)


def _free_memory() -> int:
    """Bytes that new allocations can have; half of the machine where Linux does not say."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _warm_up(core: EngineCore) -> None:
    """One prefill and two decodes, so that the first user does not pay for lazy initialisation."""
    core.apply(m.Open(0, "foreground"))
    core.apply(m.Append(0, [i % 16 for i in range(min(64, core.max_context - 4))]))
    core.apply(m.Generate(0, 0, m.GenerateParams(max_tokens=3)))
    while core.has_work:
        core.step()
    core.apply(m.Close(0))
    core.step()
