"""Runs one tool call: claim it, check the arguments, work within the time limit, keep and post the first result."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable
from typing import Any, TypeVar

import redis
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from realtime import keys
from realtime.inbox import post_sync
from realtime.messages import InboxMessage, ToolJob, ToolPartial, ToolProgress, ToolResult, ToolStarted
from workers.call_record import CallRecord, Claimed, Holder, Result
from workers.partial_output import PartialOutput
from workers.registry import TOOLS, Tool
from workers.time_limit import TimeLimitExceeded, time_limit
from workers.tool import ToolContext, ToolError

log = logging.getLogger(__name__)

MAX_RUNS = 3
MAX_ARGUMENT_BYTES = 64 * 1024
REDIS_PATIENCE_S = 30.0
REDIS_PAUSE_S = 0.5

T = TypeVar("T")


class Execution:
    """One delivery of a job to the pool process `me`."""

    def __init__(self, client: redis.Redis, job: ToolJob, me: Holder) -> None:
        self._client = client
        self._job = job
        self._me = me
        self._record = CallRecord(client, job)

    def run(self) -> None:
        """Returns when the result is stored and posted, or when another process is busy with this attempt.

        Raises `redis.RedisError` when Redis stays unreachable for `REDIS_PATIENCE_S`.
        """
        claim = _patiently(lambda: self._record.claim(self._me, time.time()))
        if isinstance(claim, Holder):
            if self._is_alive(claim):
                log.info("call %s is already running in %s", self._job.call, claim.worker)
                return
            claim = self._take_over(claim)
        if isinstance(claim, Claimed):
            self._post(ToolStarted(self._job.call, self._job.attempt, self._me.worker))
            self._finish(*self._work(claim.runs))
        elif claim is None:
            self._post_result(_patiently(self._record.result))

    def _take_over(self, dead: Holder) -> Claimed | Holder | None:
        tool = TOOLS.get(self._job.name)
        if tool is None or tool.spec.idempotent:
            return _patiently(lambda: self._record.claim(self._me, time.time(), instead_of=dead))
        self._finish("", "the worker that ran this tool died; it is not known whether the tool took effect")
        return dead

    def _is_alive(self, holder: Holder) -> bool:
        if holder.worker != self._me.worker:
            return bool(_patiently(lambda: self._client.exists(keys.worker(holder.worker))))
        try:
            os.kill(holder.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def _work(self, runs: int) -> tuple[str, str]:
        """Output and error, one of them empty."""
        if runs > MAX_RUNS:
            return "", f"this tool call killed its worker {MAX_RUNS} times"
        try:
            tool, arguments = check(self._job)
            if self._cancelled():
                raise ToolError("cancelled")
            context = ToolContext(self._progress, self._cancelled, PartialOutput(self._partial).add)
            with time_limit(tool.spec.time_limit_s):
                return tool.run(arguments, context), ""
        except ToolError as error:
            return "", str(error) or "the tool failed"
        except TimeLimitExceeded:
            return "", f"the tool took longer than {TOOLS[self._job.name].spec.time_limit_s:g} s"
        except Exception as error:
            # The traceback may quote the arguments, which are the user's words, so only the kind is logged.
            log.error("tool %s raised %s", self._job.name, type(error).__name__)
            return "", f"the tool raised {type(error).__name__}"

    def _finish(self, output: str, error: str) -> None:
        if _patiently(lambda: self._record.finish(output, error, time.time())):
            self._post_result(_patiently(self._record.result))

    def _post_result(self, result: Result) -> None:
        self._post(
            ToolResult(
                self._job.call,
                self._job.attempt,
                result.output,
                result.error,
                result.started_at,
                result.finished_at,
            )
        )

    def _post(self, message: InboxMessage) -> None:
        _patiently(lambda: post_sync(self._client, self._job.node, message))

    def _progress(self, progress: float, total: float | None, message: str) -> None:
        self._post_once(ToolProgress(self._job.call, self._job.attempt, progress, total, message))

    def _partial(self, start: int, text: str) -> None:
        self._post_once(ToolPartial(self._job.call, self._job.attempt, start, text))

    def _post_once(self, message: InboxMessage) -> None:
        # A lost report is not worth failing the call for.
        try:
            post_sync(self._client, self._job.node, message)
        except redis.RedisError:
            log.warning("a report of call %s was not delivered", self._job.call)

    def _cancelled(self) -> bool:
        try:
            return self._record.cancelled()
        except redis.RedisError:
            return False


def check(job: ToolJob) -> tuple[Tool, dict[str, Any]]:
    """The tool and its arguments. Raises `ToolError` saying what is wrong with them."""
    tool = TOOLS.get(job.name)
    if tool is None:
        raise ToolError(f"there is no tool {job.name[:64]!r}; there are {', '.join(TOOLS)}")
    if len(job.arguments.encode()) > MAX_ARGUMENT_BYTES:
        raise ToolError(f"the arguments are longer than {MAX_ARGUMENT_BYTES} bytes")
    try:
        arguments = json.loads(job.arguments)
    except (ValueError, RecursionError):
        raise ToolError("the arguments are not valid JSON") from None
    problem = best_match(Draft202012Validator(tool.spec.parameters).iter_errors(arguments))
    if problem is not None:
        raise ToolError(f"invalid arguments: {problem.json_path}: {problem.message[:300]}")
    return tool, arguments


def _patiently(action: Callable[[], T]) -> T:
    """The action's value, tried again while Redis is away. Raises `redis.RedisError` after `REDIS_PATIENCE_S`."""
    deadline = time.monotonic() + REDIS_PATIENCE_S
    while True:
        try:
            return action()
        except (redis.ConnectionError, redis.TimeoutError):
            if time.monotonic() >= deadline:
                raise
            time.sleep(REDIS_PAUSE_S)
