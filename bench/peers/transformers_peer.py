"""transformers in its two ways: `generate` on one batch of prompts of equal length, and its continuous batching."""

from __future__ import annotations

import time
from typing import Any

from protocol import Run, serve  # type: ignore[import-not-found]

KV_BLOCKS = 96
STEP_TOKENS = 2048


def load(folder: str, way: str) -> tuple[str, Run]:
    import torch
    import transformers

    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    run = continuous(model.eval()) if way == "continuous" else whole_batch(model.eval())
    return f"transformers {transformers.__version__}", run


def whole_batch(model: Any) -> Run:
    """`generate`, where all sequences start and end together."""
    import torch

    # Nothing ends early, and no processor has to see to that.
    model.generation_config.eos_token_id = None

    @torch.inference_mode()
    def run(prompts: list[list[int]], new_tokens: int) -> tuple[list[float], float]:
        started, seen = time.perf_counter(), []

        def stop(input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
            seen.append(time.perf_counter() - started)
            return torch.zeros(len(input_ids), dtype=torch.bool)

        ids = torch.tensor(prompts)
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new_tokens,
            do_sample=False,
            stopping_criteria=[stop],
            pad_token_id=0,
        )
        return [seen[0]] * len(prompts), time.perf_counter() - started

    return run


def continuous(model: Any) -> Run:
    """A manager that lives on between the runs, so that its cache is made once."""
    from transformers.generation.configuration_utils import ContinuousBatchingConfig, GenerationConfig

    config: Any = GenerationConfig
    manager = model.init_continuous_batching(
        generation_config=config(max_new_tokens=1, do_sample=False, eos_token_id=-1, pad_token_id=0),
        continuous_batching_config=ContinuousBatchingConfig(
            num_blocks=KV_BLOCKS, max_batch_tokens=STEP_TOKENS, allow_block_sharing=False
        ),
    )
    manager.start()

    def run(prompts: list[list[int]], new_tokens: int) -> tuple[list[float], float]:
        started = time.perf_counter()
        manager.add_requests(inputs=prompts, max_new_tokens=new_tokens, record_timestamps=True)
        first: list[float] = []
        while len(first) < len(prompts):
            result = manager.get_result(timeout=1)
            if result is None:
                if not manager.is_running():
                    raise RuntimeError("the manager ended")
            elif result.is_finished():
                if len(result.generated_tokens) != new_tokens:
                    raise RuntimeError(f"{len(result.generated_tokens)} tokens: {result.error}")
                first.append(result.timestamps[0] - started)
        return first, time.perf_counter() - started

    return run


if __name__ == "__main__":
    serve(load)
