"""The parts of the GPU check that measure: the native runner against what the GPU can do, transformers beside it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from bench.gpu_parts import Emit, Sizes, native_config, random_weights
from bench.step_cost import step_cost
from engine import messages as m
from engine.admission import Admission
from engine.core import EngineCore
from engine.model.native_cuda import NativeCudaRunner
from engine.model.weights import NativeConfig
from engine.scheduler import Scheduler
from engine.served_model import ServedModel

DTYPE = torch.bfloat16
BLOCK_SIZE = 16
REPEATS = 3


def native(sizes: Sizes, device: torch.device, emit: Emit) -> None:
    """Random weights through the whole engine, one context at a time; shares of rates measured just before."""
    emit("device", torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu")
    emit("torch", torch.__version__)
    bytes_per_s = _copy_rate(sizes.copied_bytes, device)
    emit("copied_bytes_per_s", bytes_per_s)
    flop_per_s = _product_rate(sizes.matrix, device)
    emit("product_flop_per_s", flop_per_s)
    config = native_config(sizes.config())
    started = time.perf_counter()
    blocks = 2 * (sizes.prefill + sizes.prompt + sizes.decode) // BLOCK_SIZE
    served = ServedModel("random", NativeCudaRunner(random_weights(config, DTYPE, device), blocks, BLOCK_SIZE))
    emit("start_s", time.perf_counter() - started)
    _measure_decode(served, sizes, config, bytes_per_s, emit)
    _measure_prefill(served, sizes, config, flop_per_s, emit)


def transformers(sizes: Sizes, device: torch.device, emit: Emit) -> None:
    """The same work for transformers' continuous batching, the whole prompt in one step."""
    from transformers.generation.configuration_utils import ContinuousBatchingConfig, GenerationConfig

    causal_lm: Any = AutoModelForCausalLM
    generation: Any = GenerationConfig
    with device:
        model = causal_lm.from_config(sizes.config(), dtype=DTYPE).eval()
    most = sizes.prefill + sizes.prompt + sizes.decode
    manager = model.init_continuous_batching(
        generation_config=generation(max_new_tokens=1, do_sample=False, eos_token_id=-1, pad_token_id=0),
        continuous_batching_config=ContinuousBatchingConfig(
            num_blocks=2 + 2 * most // 256, max_batch_tokens=sizes.prefill, allow_block_sharing=False
        ),
    )
    manager.start()
    rng = random.Random(1)

    def timestamps(prompt: int, new_tokens: int) -> list[float]:
        started = time.perf_counter()
        ids = _prompt(rng, sizes, prompt)
        manager.add_request(ids, max_new_tokens=new_tokens, record_timestamps=True)
        while True:
            result = manager.get_result(timeout=1)
            if result is None and not manager.is_running():
                raise RuntimeError("the manager ended")
            if result is not None and result.is_finished():
                if len(result.timestamps) != new_tokens:
                    raise RuntimeError(f"{len(result.timestamps)} tokens: {result.error}")
                return [moment - started for moment in result.timestamps]

    timestamps(sizes.prompt, sizes.decode)
    moments = [timestamps(sizes.prompt, sizes.decode) for _ in range(REPEATS)]
    emit("decode_tokens_per_s", max((len(times) - 1) / (times[-1] - times[0]) for times in moments))
    timestamps(sizes.prefill, 1)
    emit("prefill_s", min(timestamps(sizes.prefill, 1)[0] for _ in range(REPEATS)))
    manager.stop(block=True)


def _measure_decode(served: ServedModel, sizes: Sizes, config: NativeConfig, bytes_per_s: float, emit: Emit) -> None:
    core = _core(served, sizes.step_tokens[0])
    rng = random.Random(1)
    times = [_generate(core, _prompt(rng, sizes, sizes.prompt), sizes.decode) for _ in range(1 + REPEATS)][1:]
    rate = max((len(moments) - 1) / (moments[-1] - moments[0]) for moments in times)
    emit("decode_tokens_per_s", rate)
    context = sizes.prompt + sizes.decode // 2
    cost = step_cost(config, served.runner.weights, 1, context, served.runner.bytes_per_token)
    emit("decode_share", rate * (cost.weight_bytes + cost.kv_bytes) / bytes_per_s)


def _measure_prefill(served: ServedModel, sizes: Sizes, config: NativeConfig, flop_per_s: float, emit: Emit) -> None:
    """Of all budgets the best counts."""
    rng = random.Random(2)
    seconds: dict[int, float] = {}
    for budget in sizes.step_tokens:
        core = _core(served, budget)
        times = [_generate(core, _prompt(rng, sizes, sizes.prefill), 1)[0] for _ in range(1 + REPEATS)][1:]
        seconds[budget] = min(times)
        emit(f"prefill_s_in_steps_of_{budget}", seconds[budget])
    emit("prefill_s", min(seconds.values()))
    tokens = sizes.prefill
    cost = step_cost(config, served.runner.weights, tokens, tokens * (tokens + 1) // 2, served.runner.bytes_per_token)
    # Logits are computed of the last token only.
    flop = cost.flop - 2.0 * (tokens - 1) * config.vocab * config.hidden
    emit("prefill_share", flop / min(seconds.values()) / flop_per_s)


def _core(served: ServedModel, step_tokens: int) -> EngineCore:
    """As on a GPU: with steps launched ahead."""
    return EngineCore(
        [served], Scheduler(step_tokens, clock=time.time), Admission(4, 4, 1_000_000), speculate=False, run_ahead=True
    )


def _generate(core: EngineCore, prompt: list[int], count: int) -> list[float]:
    """When each token was there, in seconds since the prompt was given."""
    started = time.perf_counter()
    core.apply(m.Open(0, "foreground"))
    core.apply(m.Append(0, prompt))
    core.apply(m.Generate(0, 0, m.GenerateParams(count)))
    moments: list[float] = []
    finished = False
    while not finished:
        for item in core.step():
            if isinstance(item, m.Tokens):
                moments += [time.perf_counter() - started] * len(item.tokens)
            if isinstance(item, m.Failed):
                raise RuntimeError(item.message)
            finished |= isinstance(item, m.Finished)
    core.apply(m.Close(0))
    core.step()
    if len(moments) != count:
        raise RuntimeError(f"{len(moments)} of {count} tokens")
    return moments


def _prompt(rng: random.Random, sizes: Sizes, length: int) -> list[int]:
    return [rng.randrange(3, sizes.model["vocab_size"]) for _ in range(length)]


def _copy_rate(size: int, device: torch.device) -> float:
    """Bytes read and written a second by a copy within the device's memory."""
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / _best_seconds(lambda: target.copy_(source), device)


def _product_rate(size: int, device: torch.device) -> float:
    """Floating point operations a second in a product of square matrices in bfloat16."""
    a, b = torch.randn(2, size, size, dtype=DTYPE, device=device)
    return 2.0 * size**3 / _best_seconds(lambda: a @ b, device)


def _best_seconds(work: Callable[[], Any], device: torch.device, times: int = 8) -> float:
    seconds = []
    for _ in range(times):
        _wait(device)
        started = time.perf_counter()
        work()
        _wait(device)
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
