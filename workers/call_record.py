"""The record of one tool call, `ms:tool:{call}`: who runs it, whether it is cancelled, and its first result.

Fields: state (running, done, failed), attempt, worker, pid, runs, started_at, finished_at, output, error, truncated,
and `cancel`, which the session host sets. All changes are Lua scripts, so two workers can never both win.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import redis

from realtime import keys
from realtime.messages import ToolJob

TTL_S = 3600
MAX_OUTPUT_BYTES = 64 * 1024
TRUNCATION_MARK = "\n[output truncated]"

# A newer attempt takes over from an older one; ARGV[6] is the dead holder that the same attempt may replace.
_CLAIM = """
local state = redis.call('HGET', KEYS[1], 'state')
if state == 'done' or state == 'failed' then return {'finished'} end
if state == 'running' and tonumber(redis.call('HGET', KEYS[1], 'attempt')) >= tonumber(ARGV[1]) then
  local worker, pid = unpack(redis.call('HMGET', KEYS[1], 'worker', 'pid'))
  if worker .. '/' .. pid ~= ARGV[6] then return {'taken', worker, pid} end
end
redis.call('HSET', KEYS[1], 'state', 'running', 'attempt', ARGV[1], 'worker', ARGV[2], 'pid', ARGV[3],
  'started_at', ARGV[4])
redis.call('EXPIRE', KEYS[1], ARGV[5])
return {'claimed', tostring(redis.call('HINCRBY', KEYS[1], 'runs', 1))}
"""

_FINISH = """
local state = redis.call('HGET', KEYS[1], 'state')
if state == 'done' or state == 'failed' then return 0 end
if redis.call('HEXISTS', KEYS[1], 'cancel') == 1 then ARGV[1], ARGV[3], ARGV[4] = 'failed', '', 'cancelled' end
redis.call('HSET', KEYS[1], 'state', ARGV[1], 'attempt', ARGV[2], 'output', ARGV[3], 'error', ARGV[4],
  'finished_at', ARGV[5], 'truncated', ARGV[6])
redis.call('EXPIRE', KEYS[1], ARGV[7])
return 1
"""


@dataclass(frozen=True)
class Holder:
    """The process that runs a call: a pool process of a worker."""

    worker: str
    pid: int


@dataclass(frozen=True)
class Claimed:
    """`runs` counts how often this call was begun, this time included."""

    runs: int


@dataclass(frozen=True)
class Result:
    """`error` is empty on success. Times are seconds since the epoch."""

    output: str
    error: str
    started_at: float
    finished_at: float


class CallRecord:
    def __init__(self, client: redis.Redis, job: ToolJob) -> None:
        self._client = client
        self._key = keys.tool(job.call)
        self._attempt = job.attempt

    def claim(self, me: Holder, now: float, instead_of: Holder | None = None) -> Claimed | Holder | None:
        """`Claimed` when this process is to run the call, the `Holder` that runs it already, None when it is finished.

        `instead_of` is a holder known to be dead. Raises `redis.RedisError`.
        """
        dead = f"{instead_of.worker}/{instead_of.pid}" if instead_of else ""
        reply: Any = self._client.eval(_CLAIM, 1, self._key, self._attempt, me.worker, me.pid, now, TTL_S, dead)
        match [part.decode() for part in reply]:
            case ["claimed", runs]:
                return Claimed(int(runs))
            case ["taken", worker, pid]:
                return Holder(worker, int(pid))
            case _:
                return None

    def finish(self, output: str, error: str, now: float) -> bool:
        """Stores the result; False when there was one already, which then stays. Of a cancelled call nothing is kept:
        nobody waits for it. Raises `redis.RedisError`."""
        kept = truncate(output)
        state = "failed" if error else "done"
        return bool(
            self._client.eval(_FINISH, 1, self._key, state, self._attempt, kept, error, now, int(kept != output), TTL_S)
        )

    def result(self) -> Result:
        """The stored result of a finished call. Raises `redis.RedisError`."""
        names = ["output", "error", "started_at", "finished_at"]
        values: Any = self._client.hmget(self._key, names)
        output, error, started_at, finished_at = ((value or b"").decode() for value in values)
        return Result(output, error, float(started_at or 0), float(finished_at or 0))

    def cancelled(self) -> bool:
        """Raises `redis.RedisError`."""
        return self._client.hget(self._key, "cancel") is not None


def truncate(output: str) -> str:
    """At most `MAX_OUTPUT_BYTES` of UTF-8, with a mark at the end when something was cut."""
    encoded = output.encode()
    if len(encoded) <= MAX_OUTPUT_BYTES:
        return output
    return encoded[: MAX_OUTPUT_BYTES - len(TRUNCATION_MARK)].decode(errors="ignore") + TRUNCATION_MARK
