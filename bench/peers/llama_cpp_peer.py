"""llama.cpp through its C interface: all sequences in one batch a step, the best token found with numpy."""

from __future__ import annotations

import os
import time

from protocol import Run, serve  # type: ignore[import-not-found]

CONTEXT = 16384
SEQUENCES = 32


def load(file: str) -> tuple[str, Run]:
    import llama_cpp as c  # type: ignore[import-not-found]
    import numpy as np

    c.llama_backend_init()
    model = c.llama_model_load_from_file(file.encode(), c.llama_model_default_params())
    options = c.llama_context_default_params()
    options.n_ctx, options.n_batch, options.n_ubatch, options.n_seq_max = CONTEXT, 2048, 512, SEQUENCES
    options.n_threads = options.n_threads_batch = len(os.sched_getaffinity(0))
    context = c.llama_init_from_model(model, options)
    vocab = c.llama_vocab_n_tokens(c.llama_model_get_vocab(model))
    batch = c.llama_batch_init(2048, 0, 1)

    def decode(tokens: list[tuple[int, int, int, bool]]) -> None:
        """(token, position, sequence, wants logits)."""
        batch.n_tokens = len(tokens)
        for i, (token, position, sequence, wanted) in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.logits[i] = token, position, wanted
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
        if c.llama_decode(context, batch) != 0:
            raise RuntimeError("llama_decode failed")

    def best(index: int) -> int:
        logits = np.ctypeslib.as_array(c.llama_get_logits_ith(context, index), shape=(vocab,))
        return int(logits.argmax())

    def run(prompts: list[list[int]], new_tokens: int) -> tuple[list[float], float]:
        c.llama_memory_clear(c.llama_get_memory(context), True)
        started = time.perf_counter()
        last: list[int] = []
        first: list[float] = []
        for sequence, ids in enumerate(prompts):
            decode([(token, i, sequence, i == len(ids) - 1) for i, token in enumerate(ids)])
            last.append(best(len(ids) - 1))
            first.append(time.perf_counter() - started)
        for n in range(new_tokens - 1):
            decode([(last[s], len(prompts[s]) + n, s, True) for s in range(len(prompts))])
            last = [best(i) for i in range(len(prompts))]
        return first, time.perf_counter() - started

    return f"llama.cpp, binding {c.__version__}", run


if __name__ == "__main__":
    serve(load)
