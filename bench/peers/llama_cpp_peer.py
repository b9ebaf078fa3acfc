"""llama.cpp through its C interface: all sequences in one batch a step, the best token found with numpy."""

from __future__ import annotations

import os
import time
from itertools import accumulate
from typing import Any

from protocol import Run, serve  # type: ignore[import-not-found]

TOKENS_PER_SEQUENCE = 640
STEP_TOKENS = 512


def load(file: str) -> tuple[str, Run]:
    import llama_cpp as c  # type: ignore[import-not-found]
    import numpy as np

    c.llama_backend_init()
    model = c.llama_model_load_from_file(file.encode(), c.llama_model_default_params())
    options = c.llama_context_default_params()
    options.n_batch = options.n_ubatch = STEP_TOKENS
    options.n_threads = options.n_threads_batch = len(os.sched_getaffinity(0))
    contexts: dict[int, Any] = {}
    vocab = c.llama_vocab_n_tokens(c.llama_model_get_vocab(model))
    batch = c.llama_batch_init(STEP_TOKENS, 0, 1)

    def context_for(sequences: int) -> Any:
        """As large as needed: room for more sequences would slow down one."""
        if sequences not in contexts:
            options.n_ctx, options.n_seq_max = sequences * TOKENS_PER_SEQUENCE, sequences
            contexts[sequences] = c.llama_init_from_model(model, options)
        c.llama_memory_clear(c.llama_get_memory(contexts[sequences]), True)
        return contexts[sequences]

    def decode(context: Any, tokens: list[tuple[int, int, int, bool]]) -> None:
        """(token, position, sequence, wants logits)."""
        batch.n_tokens = len(tokens)
        for i, (token, position, sequence, wanted) in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.logits[i] = token, position, wanted
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
        if c.llama_decode(context, batch) != 0:
            raise RuntimeError("llama_decode failed")

    def best(context: Any, index: int) -> int:
        logits = np.ctypeslib.as_array(c.llama_get_logits_ith(context, index), shape=(vocab,))
        return int(logits.argmax())

    def run(prompts: list[list[int]], new_tokens: int) -> tuple[list[float], float]:
        context = context_for(len(prompts))
        started = time.perf_counter()
        last: list[int] = []
        first: list[float] = []
        at_once = max(STEP_TOKENS // max(map(len, prompts)), 1)
        for begin in range(0, len(prompts), at_once):
            group = list(enumerate(prompts))[begin : begin + at_once]
            decode(context, [(token, i, s, i == len(ids) - 1) for s, ids in group for i, token in enumerate(ids)])
            ends = accumulate(len(ids) for _, ids in group)
            last += [best(context, end - 1) for end in ends]
            first += [time.perf_counter() - started] * len(group)
        for n in range(new_tokens - 1):
            decode(context, [(last[s], len(prompts[s]) + n, s, True) for s in range(len(prompts))])
            last = [best(context, i) for i in range(len(prompts))]
        return first, time.perf_counter() - started

    return f"llama.cpp, binding {c.__version__}", run


if __name__ == "__main__":
    serve(load)
