"""The Celery application: one queue, JSON only, no result backend (results go to the waiting node's inbox)."""

from __future__ import annotations

import logging
import os
import socket
from functools import cache
from typing import Any

import msgspec
import redis
from celery import Celery, signals

from launch.child import die_with_parent
from realtime.messages import ToolJob
from realtime.redis_connection import connect_sync
from realtime.tool_queue import QUEUE, TASK, TRANSPORT_OPTIONS, broker_url
from realtime.tools import SERVER_TOOLS
from workers.call_record import Holder
from workers.execute import Execution
from workers.heartbeat import Heartbeat
from workers.settings import WorkerSettings

log = logging.getLogger(__name__)

# Taken in the main process and inherited by the pool: one name for one life of a worker.
MAIN_PID = os.getpid()
WORKER_NAME = f"{socket.gethostname()}-{MAIN_PID}"
SHUTDOWN_GRACE_S = 3.0

settings = WorkerSettings()
app = Celery("midstream-workers", broker=broker_url(settings.redis_url))
app.conf.update(
    accept_content=["json"],
    task_serializer="json",
    task_ignore_result=True,
    task_default_queue=QUEUE,
    task_create_missing_queues=False,
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    # Backstop for a tool that cannot be interrupted; each tool's own limit is kept in `Execution`.
    task_time_limit=max(tool.time_limit_s for tool in SERVER_TOOLS.values()) + 30,
    worker_prefetch_multiplier=1,
    worker_concurrency=settings.worker_concurrency,
    worker_hijack_root_logger=False,
    worker_redirect_stdouts=False,
    worker_send_task_events=False,
    worker_enable_remote_control=False,
    worker_soft_shutdown_timeout=SHUTDOWN_GRACE_S,
    # A tool goes on while Redis is away: its result is kept until it can be stored.
    worker_cancel_long_running_tasks_on_connection_loss=False,
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    broker_transport_options=TRANSPORT_OPTIONS,
)


@cache
def _client() -> redis.Redis:
    return connect_sync(settings.redis_url)


@cache
def _heartbeat() -> Heartbeat:
    return Heartbeat(_client(), WORKER_NAME, settings.worker_concurrency)


def run_tool(**fields: Any) -> None:
    """The task. Fields that are not a `ToolJob` come from nobody who waits for an answer, so they are only logged."""
    try:
        job = msgspec.convert(fields, ToolJob)
    except msgspec.ValidationError as error:
        log.error("dropped a task that is not a tool job: %s", error)
        return
    Execution(_client(), job, Holder(WORKER_NAME, os.getpid())).run()


app.task(name=TASK)(run_tool)


def _pool_process_started(**_: Any) -> None:
    die_with_parent(MAIN_PID)


def _ready(**_: Any) -> None:
    _heartbeat().start()
    print("READY", flush=True)


def worker_stopped() -> None:
    """Celery sends no signal after a shutdown with running tools, so this is called when it has returned."""
    _heartbeat().stop()


# Weak references would let these vanish at once.
signals.worker_process_init.connect(_pool_process_started, weak=False)
signals.worker_ready.connect(_ready, weak=False)
