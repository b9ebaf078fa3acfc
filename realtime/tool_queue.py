"""The way from the session host to the workers: one Celery task on one queue in the neighbouring Redis database."""

from __future__ import annotations

import asyncio
from urllib.parse import parse_qs, urlsplit

import msgspec
from celery import Celery

from realtime.messages import ToolJob

TASK = "midstream.run_tool"
QUEUE = "midstream-tools"

# Redelivery of a job whose worker host vanished. Longer than any tool runs, or the tool would run twice.
VISIBILITY_TIMEOUT_S = 300
TRANSPORT_OPTIONS = {"visibility_timeout": VISIBILITY_TIMEOUT_S, "socket_connect_timeout": 2.0}

PUBLISH_RETRY = {"max_retries": 3, "interval_start": 0.05, "interval_step": 0.2, "interval_max": 0.5}


def broker_url(redis_url: str) -> str:
    """The broker is the same Redis, one logical database further, so that its keys never mix with sessions.

    Understands `redis://`, `rediss://` and `unix://`. Raises `ValueError` for anything else.
    """
    parts = urlsplit(redis_url)
    options = parse_qs(parts.query)
    if parts.scheme == "unix":
        database = int(options.get("db", ["0"])[0])
        return f"redis+socket://{parts.path}?virtual_host={database + 1}"
    if parts.scheme not in ("redis", "rediss"):
        raise ValueError(f"not a Redis URL: {parts.scheme}://…")
    in_path = parts.path.strip("/")
    database = int(in_path or options.get("db", ["0"])[0])
    return parts._replace(path=f"/{database + 1}").geturl()


class ToolQueue:
    def __init__(self, redis_url: str) -> None:
        self._app = Celery("midstream-host", broker=broker_url(redis_url), set_as_current=False)
        self._app.conf.update(
            broker_transport_options=TRANSPORT_OPTIONS, task_serializer="json", task_default_queue=QUEUE
        )

    async def send(self, job: ToolJob) -> None:
        """Raises `kombu.exceptions.OperationalError` when Redis stays unreachable for some seconds."""
        await asyncio.to_thread(self._send, job)

    def _send(self, job: ToolJob) -> None:
        self._app.send_task(
            TASK,
            kwargs=msgspec.to_builtins(job),
            queue=QUEUE,
            ignore_result=True,
            retry=True,
            retry_policy=PUBLISH_RETRY,
        )

    def close(self) -> None:
        self._app.close()
