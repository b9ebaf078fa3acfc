"""`python -m workers`: one worker with a pool of processes."""

from __future__ import annotations

import logging
import os

# Read by billiard when it is imported: SIGTERM waits SHUTDOWN_GRACE_S for running tools, then gives them back.
os.environ.setdefault("REMAP_SIGTERM", "SIGQUIT")


def main() -> None:
    from workers.app import WORKER_NAME, app, settings

    logging.basicConfig(level=settings.worker_log_level, format="%(levelname)s %(name)s: %(message)s")
    print(f"starting {settings.worker_concurrency} tool processes", flush=True)
    app.worker_main(
        [
            "--quiet",
            "worker",
            "--pool=prefork",
            f"--hostname={WORKER_NAME}",
            f"--loglevel={settings.worker_log_level}",
            "--without-gossip",
            "--without-mingle",
            "--without-heartbeat",
        ]
    )


if __name__ == "__main__":
    main()
