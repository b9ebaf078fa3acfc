"""The engine process: `python -m engine.process --socket PATH`."""

from __future__ import annotations

import argparse
import gc
import os
import signal
import sys
from pathlib import Path


def log(line: str) -> None:
    """One line on stderr; the supervisor adds which process speaks."""
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    """Loads the model, warms it up, then serves until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--socket", type=Path, required=True, help="path of the Unix domain socket to listen on")
    arguments = parser.parse_args()

    # OpenMP threads spin while they wait for each other. On a machine whose cores are also wanted by other processes
    # that made a step ten times slower. It must be set before torch loads, hence the imports down here.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from engine.model.loader import ModelError
    from engine.server import EngineServer
    from engine.settings import EngineSettings
    from engine.startup import build_engine

    try:
        core, ready = build_engine(EngineSettings(), lambda stage, done: log(f"{stage} {done:.0%}"), log)
    except ModelError as error:
        log(f"error: {error}")
        raise SystemExit(1) from error
    server = EngineServer(core, ready, arguments.socket, log)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: server.stop())
    # What is loaded stays: without this each full collection walks all of it in the middle of a step.
    gc.collect()
    gc.freeze()
    server.serve()
    gc.unfreeze()


if __name__ == "__main__":
    main()
