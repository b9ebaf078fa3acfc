"""The host's connection to its engine process: connect, notice a loss, connect again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from engine.client import EngineClient, EngineLost

log = logging.getLogger(__name__)

RETRY_S = 0.1


class EngineLink:
    """`current` is the live client or None; `on_change` is called when one dies (its contexts are gone) and when one is
    there."""

    def __init__(self, socket: Path, on_change: Callable[[], None]) -> None:
        self._socket = socket
        self._on_change = on_change
        self._up = asyncio.Event()
        self.current: EngineClient | None = None

    async def run(self) -> None:
        """Keeps a connection for ever; cancel to stop."""
        while True:
            try:
                client = await EngineClient.connect(self._socket, timeout=5.0)
            except (OSError, EngineLost, TimeoutError):
                await asyncio.sleep(RETRY_S)
                continue
            log.info("engine %s: %s on %s", client.ready.epoch, client.ready.models[0].name, client.ready.device)
            self.current = client
            self._up.set()
            self._on_change()
            try:
                await client.lost.wait()
            finally:
                self._up.clear()
                self.current = None
                await client.aclose()
            log.warning("engine lost")
            self._on_change()

    async def client(self, timeout_s: float) -> EngineClient:
        """The live client, waiting for a restart if need be. Raises `EngineLost` after `timeout_s`."""
        while self.current is None or self.current.lost.is_set():
            try:
                await asyncio.wait_for(self._up.wait(), timeout_s)
            except TimeoutError:
                raise EngineLost from None
            if self.current is not None and self.current.lost.is_set():
                await asyncio.sleep(0)  # `run` has not noticed yet
        return self.current
