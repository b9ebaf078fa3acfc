"""The one engine context of a session: opened when needed, lost with its engine, its whereabouts told to Redis."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable

from engine.client import ContextHandle, EngineError, EngineLost
from engine.messages import KvMoved, Prefilled
from realtime.journal import Journal
from realtime.node import Node


class SessionContext:
    """`on_prefilled` hears of every step that computed tokens of this session's prompt."""

    _payers = itertools.count(1)

    def __init__(self, node: Node, journal: Journal, on_prefilled: Callable[[Prefilled], None]) -> None:
        self._node = node
        self._journal = journal
        self._on_prefilled = on_prefilled
        self._handle: ContextHandle | None = None
        self._payer = next(self._payers)

    @property
    def now(self) -> ContextHandle | None:
        """The context, opened if an engine is there; None while there is none."""
        client = self._node.link.current
        if client is None or client.lost.is_set():
            self._handle = None
        elif self._handle is None:
            try:
                self._handle = client.open("background", payer=self._payer)
            except (EngineLost, EngineError):
                return None
            self._handle.on_prefilled = self._on_prefilled
            self._handle.on_kv_moved = self._on_kv_moved
        return self._handle

    async def wait(self) -> ContextHandle:
        """The context, waiting for an engine if need be. Raises `EngineLost` when none comes."""
        deadline = time.monotonic() + self._node.settings.engine_wait_s
        while (handle := self.now) is None:
            await self._node.link.client(deadline - time.monotonic())
            await asyncio.sleep(0.01)
        return handle

    def hold(self, handle: ContextHandle, expected_s: float | None) -> None:
        """Keeps the KV of a turn that waits for a tool."""
        handle.hold("tool", expected_s)
        self._journal.save_kv("device", handle.kv_tokens, "preserve", "tool")

    def stop(self) -> None:
        """Ends whatever runs in the context and lets background work have it."""
        handle = self.now
        if handle is None:
            return
        try:
            handle.cancel()
            if handle.held:
                handle.resume([])
            handle.priority = "background"
        except (EngineLost, EngineError):
            self.discard()

    def discard(self) -> None:
        """After a refusal the mirror cannot be trusted: the next use opens a new context."""
        handle, self._handle = self._handle, None
        if handle is not None:
            with contextlib.suppress(EngineLost):
                handle.close()
            self._journal.delete_kv()

    def engine_changed(self) -> None:
        """What an engine held is gone with it."""
        self._handle = None
        self._journal.delete_kv()

    def record(self, reason: str) -> None:
        """Tells Redis where the KV is while nothing holds it."""
        if self._handle is not None:
            self._journal.save_kv("device", self._handle.kv_tokens, "", reason)

    def _on_kv_moved(self, item: KvMoved) -> None:
        self._journal.save_kv(item.location, item.tokens, item.decision, item.reason)
        state = "preserved" if item.decision == "preserve" else "discarded"
        fields = {"state": state, "reason": item.reason, "tokens": item.tokens, "bytes": item.bytes}
        self._journal.emit_extension("midstream.kv.state", **fields)
