"""`python -m workers`: one worker with a pool of processes."""

from __future__ import annotations

import logging
import os
import warnings

# Read by billiard when it is imported: SIGTERM waits SHUTDOWN_GRACE_S for running tools, then gives them back.
os.environ.setdefault("REMAP_SIGTERM", "SIGQUIT")


def main() -> None:
    from celery.exceptions import CPendingDeprecationWarning, SecurityWarning

    from workers.app import WORKER_NAME, app, settings, worker_stopped

    # Celery warns of unpickling as root; this worker accepts JSON only.
    warnings.simplefilter("ignore", SecurityWarning)
    # About tasks that run on while the broker is away; claims and stored results make that harmless here.
    warnings.simplefilter("ignore", CPendingDeprecationWarning)
    logging.basicConfig(level=settings.worker_log_level, format="%(levelname)s %(name)s: %(message)s")
    print(f"starting {settings.worker_concurrency} tool processes", flush=True)
    arguments = [
        "--quiet",
        "worker",
        "--pool=prefork",
        f"--hostname={WORKER_NAME}",
        f"--loglevel={settings.worker_log_level}",
        "--without-gossip",
        "--without-mingle",
        "--without-heartbeat",
    ]
    try:
        app.worker_main(arguments)
    finally:
        worker_stopped()


if __name__ == "__main__":
    main()
