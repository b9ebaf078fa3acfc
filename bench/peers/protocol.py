"""JSON lines between the benchmark and a peer, which runs in its own environment: no imports but the standard library.

In: `{"prompts": [[ids]], "new_tokens": n}`; out: `{"first_s": [seconds], "total_s": seconds}`, from the moment all
requests were there; the first line out is `{"version": ...}`. Libraries print to stderr, whatever they think.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable

Run = Callable[[list[list[int]], int], tuple[list[float], float]]
"""Greedy generation of exactly so many tokens; seconds to each first token and to the end."""


def serve(load: Callable[..., tuple[str, Run]]) -> None:
    """Loads what the command line says (the model, then the peer's own options) and answers until stdin ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    version, run = load(*sys.argv[1:])
    print(json.dumps({"version": version}), file=answers)
    for line in sys.stdin:
        request = json.loads(line)
        first, total = run(request["prompts"], request["new_tokens"])
        print(json.dumps({"first_s": first, "total_s": total}), file=answers)
