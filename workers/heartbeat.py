"""`ms:worker:{name}`: exists while the worker's main process lives, so that its death is noticed within seconds."""

from __future__ import annotations

import json
import threading
import time
from contextlib import suppress

import redis

from realtime import keys

TTL_S = 3
INTERVAL_S = 1.0


class Heartbeat:
    def __init__(self, client: redis.Redis, name: str, concurrency: int) -> None:
        self._client = client
        self._key = keys.worker(name)
        self._value = json.dumps({"name": name, "concurrency": concurrency, "started_at": time.time()})
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def start(self) -> None:
        """The key exists when this returns, unless Redis is unreachable just now."""
        self._refresh()
        self._thread.start()

    def stop(self) -> None:
        """Removes the key, so that nobody waits for it to expire."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=TTL_S)
        # Without Redis the key expires by itself.
        with suppress(redis.RedisError):
            self._client.delete(self._key)

    def _beat(self) -> None:
        while not self._stop.wait(INTERVAL_S):
            self._refresh()

    def _refresh(self) -> None:
        # While Redis is away, the next beat tries again.
        with suppress(redis.RedisError):
            self._client.set(self._key, self._value, ex=TTL_S)
