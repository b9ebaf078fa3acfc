"""From settings to a warm engine: device, dtype, sizes, models, first steps."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from engine import messages as m
from engine.admission import Admission
from engine.core import EngineCore
from engine.interception.learned_timing import LearnedTiming
from engine.interception.policies import POLICIES
from engine.kv.host_tier import make_host_tier
from engine.kv.swap import Swapper
from engine.model.batch import Runner
from engine.model.cpu.build import BuildError, build_kernels
from engine.model.grammar import GrammarCompiler
from engine.model.loader import ModelError, Progress, load_model, model_name, prepare_model
from engine.model.native_cpu import BLOCK_SIZE, NativeCpuRunner, Quantisation, check_supported, kv_bytes_per_token
from engine.model.weights import NativeConfig, UnsupportedModel, load_weights, stored_dtype
from engine.rate_limit import RateLimits
from engine.scheduler import Scheduler
from engine.served_model import ServedModel
from engine.settings import EngineSettings

_CPU_KV_TOKENS = 64 * 1024
_MEMORY_SHARE = {"cpu": 0.4, "cuda": 0.85}
_STEP_TOKENS = {"cpu": 256, "cuda": 2048}
_HOST_MEMORY_SHARE = 0.25
_HOST_POOLS = 4


def build_engine(
    settings: EngineSettings, progress: Progress, log: Callable[[str], None]
) -> tuple[EngineCore, m.Ready]:
    """Loads and warms up. Raises `loader.ModelError`."""
    place = _place(settings, progress, log)
    device, dtype = place.device, place.dtype
    names = [settings.model, *([settings.thinking_model] if settings.thinking_model else [])]
    models = [_serve(name, 1 / (len(names) - i), place) for i, name in enumerate(names)]
    scheduler = Scheduler(
        settings.step_tokens or _STEP_TOKENS[device.type],
        background_step_tokens=settings.background_step_tokens,
        limits=RateLimits(settings.background_tokens_per_s, settings.session_background_tokens_per_s, time.time()),
        clock=time.time,
    )
    for index, model in enumerate(models):
        model.policy = POLICIES[settings.interception_policy](LearnedTiming(scheduler.step_time, index, model.tiers))
    core = EngineCore(
        models,
        scheduler,
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


@dataclass(frozen=True, slots=True)
class _Place:
    """Where models run."""

    settings: EngineSettings
    device: torch.device
    dtype: torch.dtype
    threads: int
    progress: Progress
    log: Callable[[str], None]


def follow_engine(settings: EngineSettings, progress: Progress, log: Callable[[str], None]) -> None:
    """Loads this rank's shard and computes what rank 0 computes, until that ends. Raises `loader.ModelError`."""
    from engine.model.tensor_parallel import TensorParallelRunner

    place = _place(settings, progress, log)
    runner = _transformers_runner(prepare_model(settings.model, settings.model_cache, progress), 1.0, place)
    assert isinstance(runner, TensorParallelRunner)
    runner.follow()


def _place(settings: EngineSettings, progress: Progress, log: Callable[[str], None]) -> _Place:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if settings.tensor_parallel > 1:
        from engine.model.tensor_parallel import join

        if settings.thinking_model:
            raise ModelError("a thinking model and tensor_parallel cannot be combined yet")
        device = join(settings.tensor_parallel, device)
    threads = settings.torch_threads or max(len(os.sched_getaffinity(0)) // _ranks_here(settings, device), 1)
    torch.set_num_threads(threads)
    return _Place(settings, device, _dtype(settings, device), threads, progress, log)


def _ranks_here(settings: EngineSettings, device: torch.device) -> int:
    """How many ranks share the cores."""
    return settings.tensor_parallel if device.type == "cpu" else 1


def _serve(name: str, share: float, place: _Place) -> ServedModel:
    """One model with its runner; its KV pool gets `share` of the memory that is left."""
    folder = prepare_model(name, place.settings.model_cache, place.progress)
    runner = _native_runner(folder, share, place) or _transformers_runner(folder, share, place)
    grammars = GrammarCompiler.from_folder(folder, runner.vocab_size, place.threads)
    return ServedModel(model_name(name), runner, grammars, swapper=_host_tier(runner, share, place))


def _host_tier(runner: Runner, share: float, place: _Place) -> Swapper | None:
    """None where the settings or the runner rule it out."""
    settings = place.settings
    tokens = settings.host_kv_tokens
    if tokens is None:
        fitting = int(_free_memory() * share * _HOST_MEMORY_SHARE) // runner.bytes_per_token
        tokens = min(_HOST_POOLS * runner.kv_blocks * runner.block_size, fitting)
    blocks = tokens // runner.block_size
    if not blocks or not runner.kv_planes:
        return None
    try:
        return make_host_tier(runner.kv_planes, blocks, gbps=settings.swap_gbps, clock=time.time)
    except MemoryError as error:
        raise ModelError(f"{error}; set MIDSTREAM_HOST_KV_TOKENS") from error


def _native_runner(folder: Path, share: float, place: _Place) -> Runner | None:
    """None when the model, the machine or the settings ask for the transformers runner. Raises `ModelError` when the
    settings leave no choice."""
    settings = place.settings
    if settings.runner == "transformers" or settings.tensor_parallel > 1:
        return None
    try:
        return _make_native_runner(folder, share, place)
    except (UnsupportedModel, BuildError) as reason:
        if settings.runner == "native" or settings.weights != "auto":
            raise ModelError(f"the native runner cannot be used: {reason}") from reason
        place.log(f"using the transformers runner: {reason}")
        return None


def _make_native_runner(folder: Path, share: float, place: _Place) -> Runner:
    settings, dtype = place.settings, place.dtype
    if place.device.type == "cuda":
        return _make_cuda_runner(folder, share, place)
    if settings.kv_block_size != BLOCK_SIZE:
        raise UnsupportedModel(f"its KV blocks have {BLOCK_SIZE} tokens")
    config = NativeConfig.from_folder(folder)
    check_supported(config, dtype)
    place.progress("compiling kernels", 0.0)
    library = build_kernels(settings.model_cache)
    quantisation: Quantisation = "none" if settings.weights == "auto" else settings.weights
    # Rounded to bfloat16 first, weights that were four bits in their file would not be those four bits again.
    exact = stored_dtype(folder) if quantisation == "none" else torch.float32
    weights = load_weights(folder, max(exact, dtype, key=lambda one: one.itemsize), place.device, place.progress)
    blocks = _kv_tokens(place, share, kv_bytes_per_token(config, dtype)) // BLOCK_SIZE
    return NativeCpuRunner(weights, blocks, place.threads, quantisation, library, dtype)


def _make_cuda_runner(folder: Path, share: float, place: _Place) -> Runner:
    from engine.model.native_cuda import NativeCudaRunner

    if place.settings.weights != "auto":
        raise UnsupportedModel("it has no quantised kernels for GPUs")
    config, size = NativeConfig.from_folder(folder), place.settings.kv_block_size
    weights = load_weights(folder, place.dtype, place.device, place.progress)
    return NativeCudaRunner(weights, _kv_tokens(place, share, kv_bytes_per_token(config, place.dtype)) // size, size)


def _transformers_runner(folder: Path, share: float, place: _Place) -> Runner:
    # Importing transformers takes longer than loading a small model: only who needs it waits for it.
    from engine.model import runner_transformers as transformers_runner

    if place.settings.weights != "auto":
        raise ModelError(f"weights={place.settings.weights} needs the native runner")
    shards = place.settings.tensor_parallel
    model = load_model(folder, place.dtype, place.device, place.progress, shards)
    bytes_per_token = transformers_runner.kv_bytes_per_token(model.config, place.dtype) // shards
    blocks = _kv_tokens(place, share, bytes_per_token) // place.settings.kv_block_size
    if shards == 1:
        return transformers_runner.TransformersRunner(model, blocks, place.settings.kv_block_size)
    from engine.model.tensor_parallel import TensorParallelRunner, agree

    shard = transformers_runner.TransformersRunner(model, agree(blocks), place.settings.kv_block_size, shards)
    return TensorParallelRunner(shard)


def _dtype(settings: EngineSettings, device: torch.device) -> torch.dtype:
    if settings.dtype != "auto":
        return torch.float32 if settings.dtype == "float32" else torch.bfloat16
    fast = device.type == "cuda" or torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()
    return torch.bfloat16 if fast else torch.float32


def _kv_tokens(place: _Place, share: float, bytes_per_token: int) -> int:
    if place.settings.kv_tokens is not None:
        return place.settings.kv_tokens
    on_gpu = place.device.type == "cuda"
    free = torch.cuda.mem_get_info(place.device)[0] if on_gpu else _free_memory()
    fitting = int(free * share * _MEMORY_SHARE[place.device.type]) // bytes_per_token
    return fitting if on_gpu else max(min(fitting, _CPU_KV_TOKENS), 1024)


def _free_memory() -> int:
    """Bytes that new allocations can have; half of the machine where Linux does not say."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _warm_up(core: EngineCore, index: int) -> None:
    """One prefill and two decodes, so that the first user neither pays for lazy initialisation nor finds out that the
    model does not compute here. Raises `ModelError`."""
    model = core.models[index]
    core.apply(m.Open(0, "foreground", index))
    core.apply(m.Append(0, [i % 16 for i in range(min(64, model.max_context - 4))]))
    core.apply(m.Generate(0, 0, m.GenerateParams(max_tokens=3)))
    items: list[m.Item] = []
    while core.has_work:
        items += core.step()
    core.apply(m.Close(0))
    items += core.step()
    for item in items:
        if isinstance(item, m.Failed):
            raise ModelError(f"{model.name} cannot be served: {item.message}")
        if isinstance(item, m.Finished) and item.reason == "failed":
            raise ModelError(f"{model.name} cannot be served: its first steps failed")
