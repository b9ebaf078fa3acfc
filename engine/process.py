"""The engine process: `python -m engine.process --socket PATH`."""

from __future__ import annotations

import argparse
import gc
import os
import signal
import sys
from pathlib import Path
from typing import NoReturn


def log(line: str) -> None:
    """One line on stderr; the supervisor adds which process speaks."""
    print(line, file=sys.stderr, flush=True)


def start_ranks(count: int) -> NoReturn:
    """Becomes torchrun, which starts this program `count` times."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}", "-m", "engine.process"]
    os.execv(sys.executable, [sys.executable, *launcher, *sys.argv[1:]])


def main() -> None:
    """Loads the model, warms it up, then serves until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--socket", type=Path, required=True, help="path of the Unix domain socket to listen on")
    arguments = parser.parse_args()

    # OpenMP threads spin while they wait for each other. On a machine whose cores are also wanted by other processes
    # that made a step ten times slower. It must be set before torch loads, hence the imports down here.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from engine.model.loader import ModelError
    from engine.model.tensor_parallel import is_follower, is_started
    from engine.server import EngineServer
    from engine.settings import EngineSettings
    from engine.startup import build_engine, follow_engine
    from launch.child import die_with_parent

    settings = EngineSettings()
    if settings.tensor_parallel > 1 and not is_started():
        start_ranks(settings.tensor_parallel)
    if is_started():
        # torchrun puts each rank in a session of its own, where a kill of the engine's group does not reach it.
        die_with_parent(os.getppid())

    def progress(stage: str, done: float) -> None:
        log(f"{stage} {done:.0%}")

    try:
        if is_follower():
            # Rank 0 ends the others; a signal to the whole group must not end them under its hands.
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
            follow_engine(settings, progress, lambda line: None)
            return
        core, ready = build_engine(settings, progress, log)
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
    for model in core.models:
        model.tiers.close()
        model.runner.close()
    gc.unfreeze()


if __name__ == "__main__":
    main()
