"""The workload on vLLM, stepped by hand: a tool's return is a new request with the whole text so far, as its users do
it today, and the prefix cache is on.

In: `{"requests": [{"arrival_s", "turns": [{"tokens", "generate", "tool_s"}]}], "limit_s"}`; out: `{"outcomes":
[[first_token_s, end_s]], "window_s", "recomputed_tokens"}`, null for what did not come in time. The first line out is
`{"version": ...}`. Runs in the environment of the peer: no imports but the standard library.
"""

from __future__ import annotations

import heapq
import json
import os
import sys
import time
from typing import Any

from vllm_peer import preload  # type: ignore[import-not-found]

BLOCK_SIZE = 32
"""The smallest that its CPU attention has."""


class Replay:
    """One workload. `recomputed_tokens` counts what was not found in the prefix cache again, without what vLLM itself
    preempted and computed again."""

    def __init__(self, engine: Any, sampling_params: Any, requests: list[dict[str, Any]], limit_s: float) -> None:
        self.outcomes: list[list[float | None]] = [[None, None] for _ in requests]
        self.recomputed_tokens = 0
        self._engine = engine
        self._sampling_params = sampling_params
        self._requests = requests
        self._limit_s = limit_s
        self._turns = [0] * len(requests)
        self._texts: list[list[int]] = [[] for _ in requests]
        self._due = [(request["arrival_s"], index) for index, request in enumerate(requests)]
        heapq.heapify(self._due)
        self._started = time.perf_counter()

    def run(self) -> float:
        """Until all are completed or the time is up; returns the seconds."""
        while self._now() < self._limit_s:
            while self._due and self._due[0][0] <= self._now():
                self._send(heapq.heappop(self._due)[1])
            if self._engine.has_unfinished_requests():
                for output in self._engine.step():
                    self._take(output)
            elif self._due:
                time.sleep(max(min(self._due[0][0], self._limit_s) - self._now(), 0))
            else:
                break
        return self._now()

    def _now(self) -> float:
        return time.perf_counter() - self._started

    def _send(self, index: int) -> None:
        turn = self._requests[index]["turns"][self._turns[index]]
        self._texts[index] += turn["tokens"]
        params = self._sampling_params(temperature=0.0, max_tokens=turn["generate"], ignore_eos=True, detokenize=False)
        name = f"{index}.{self._turns[index]}"
        self._engine.add_request(name, {"prompt_token_ids": list(self._texts[index])}, params)

    def _take(self, output: Any) -> None:
        index = int(output.request_id.split(".")[0])
        request, outcome = self._requests[index], self.outcomes[index]
        if output.outputs[0].token_ids and outcome[0] is None:
            outcome[0] = self._now() - request["arrival_s"]
        if not output.finished:
            return
        turns, number = request["turns"], self._turns[index]
        if number:
            before = len(self._texts[index]) - len(turns[number]["tokens"]) - 1
            self.recomputed_tokens += max(before - (output.num_cached_tokens or 0), 0)
        self._texts[index] += output.outputs[0].token_ids
        if number + 1 == len(turns):
            outcome[1] = self._now() - request["arrival_s"]
        else:
            self._turns[index] += 1
            heapq.heappush(self._due, (self._now() + turns[number]["tool_s"], index))


def serve(folder: str, threads: str, kv_tokens: int, max_context: int) -> None:
    """Loads the model and answers until stdin ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_USE_AOT_COMPILE", "0")
    import vllm  # type: ignore[import-not-found]

    llm = vllm.LLM(
        model=folder,
        dtype="bfloat16",
        max_model_len=max_context,
        max_num_seqs=64,
        enable_prefix_caching=True,
        block_size=BLOCK_SIZE,
        # One of them is never used.
        num_gpu_blocks_override=kv_tokens // BLOCK_SIZE + 1,
    )
    print(json.dumps({"version": f"vllm-cpu {vllm.__version__}, {threads}"}), file=answers)
    for line in sys.stdin:
        asked = json.loads(line)
        replay = Replay(llm.llm_engine, vllm.SamplingParams, asked["requests"], asked["limit_s"])
        window_s = replay.run()
        answer = {
            "outcomes": replay.outcomes,
            "window_s": window_s,
            "recomputed_tokens": replay.recomputed_tokens,
        }
        print(json.dumps(answer), file=answers)


if __name__ == "__main__":
    preload(sys.argv[2])
    serve(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
