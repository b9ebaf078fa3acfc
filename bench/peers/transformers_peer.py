"""transformers: `generate` on one batch of prompts of equal length, which is as fast as it gets here."""

from __future__ import annotations

import time
from typing import Any

from protocol import Run, serve  # type: ignore[import-not-found]


def load(folder: str) -> tuple[str, Run]:
    import torch
    import transformers

    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)

    model.eval()

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
            min_new_tokens=new_tokens,
            do_sample=False,
            stopping_criteria=[stop],
            pad_token_id=0,
        )
        return [seen[0]] * len(prompts), time.perf_counter() - started

    return f"transformers {transformers.__version__}", run


if __name__ == "__main__":
    serve(load)
