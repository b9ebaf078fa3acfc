"""The one engine context of a session: opened when needed, lost with its engine, its whereabouts told to Redis."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable

from engine.client import ContextHandle, EngineError, EngineLost
from engine.messages import KvMoved, Prefilled, ToolState
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
        self._held_tokens = 0

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
            self._listen(self._handle)
        return self._handle

    def adopt(self, fork: ContextHandle) -> None:
        """A fork takes the place of the context, which is closed."""
        context, self._handle = self._handle, fork
        self._listen(fork)
        self._held_tokens = 0
        if context is not None:
            context.close()

    def _listen(self, handle: ContextHandle) -> None:
        handle.on_prefilled = self._on_prefilled
        handle.on_kv_moved = self._on_kv_moved
        handle.on_tool_ack = self._node.metrics.hint

    async def wait(self) -> ContextHandle:
        """The context, waiting for an engine if need be. Raises `EngineLost` when none comes."""
        deadline = time.monotonic() + self._node.settings.engine_wait_s
        while (handle := self.now) is None:
            await self._node.link.client(deadline - time.monotonic())
            await asyncio.sleep(0.01)
        return handle

    def hold(
        self, handle: ContextHandle, *, call: str, tool: str, argument_class: str, expected_s: float | None
    ) -> None:
        """Keeps the KV of a turn that waits for a tool; one that it waited for before is over."""
        if handle.held:
            handle.resume([])
        handle.hold("tool", call=call, tool=tool, argument_class=argument_class, expected_s=expected_s)
        self._held_tokens = 0
        self._save(handle, "preserve", "tool")

    def hint(self, handle: ContextHandle, call: str, state: ToolState, expected_s: float | None = None) -> None:
        """Tells the engine of a call; whether it listens makes no difference here."""
        with contextlib.suppress(EngineLost, EngineError):
            handle.tool_event(call, state, expected_s)

    def read_ahead(self, handle: ContextHandle, tokens: list[int]) -> None:
        """Lets a held context have the tokens that it will probably need, unless the engine has given up some of its
        KV: new tokens would bring that back before its time."""
        if handle.held and not handle.host_tokens and handle.kv_tokens >= self._held_tokens:
            with contextlib.suppress(EngineLost, EngineError):
                handle.sync(tokens[: self._node.max_context - 1])

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
            self._held_tokens = 0
            self._save(self._handle, "", reason)

    def _on_kv_moved(self, item: KvMoved) -> None:
        if self._handle is None:
            return
        if item.decision == "preserve":
            self._held_tokens = self._handle.kv_tokens
        self._save(self._handle, item.decision, item.reason)
        fields = {"state": _STATES[item.decision], "reason": item.reason, "tokens": item.tokens, "bytes": item.bytes}
        self._journal.emit_extension("midstream.kv.state", **fields)

    def _save(self, handle: ContextHandle, decision: str, reason: str) -> None:
        location, tokens = self._whereabouts(handle)
        self._journal.save_kv(location, tokens, decision, reason)

    def _whereabouts(self, handle: ContextHandle) -> tuple[str, int]:
        """Where the KV is, and of how many tokens; `partial`: in two places, or not all of what was held is left."""
        device, host = handle.kv_tokens, handle.host_tokens
        tokens = min(device + host, len(handle.tokens))
        if not tokens:
            return "none", 0
        if device and host or tokens < self._held_tokens:
            return "partial", tokens
        return ("host" if host else "device"), tokens


_STATES = {"preserve": "preserved", "swap": "swapped", "discard": "discarded", "restore": "restored"}
