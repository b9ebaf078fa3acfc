"""Plays a script of edits against the WebSocket, sends, and reads the answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from bench.realtime_client import RealtimeClient
from bench.typing.clock import Watch
from bench.typing.script import Edit, Script

EVENTS = ["strategy", "prefill", "inference", "draft", "turn", "trace"]
ANSWER_TIMEOUT_S = 600.0


@dataclass
class Played:
    """What came of one script. Seconds: `latency_s` and `ttft_s` count from the last keystroke, the first until the
    answer is complete; `typed_s` is the time on the typing clock, `played_s` what it took. `notes` are the events
    `midstream.inference.done`, `turn` and `usage` the server's own account."""

    text: str
    status: str
    latency_s: float
    ttft_s: float | None
    typed_s: float
    played_s: float
    usage: dict[str, Any]
    turn: dict[str, Any]
    notes: list[dict[str, Any]] = field(default_factory=list)
    discarded_notes: int = 0


class Driver:
    """One session; use as an async context manager."""

    def __init__(self, url: str, watch: Watch | None = None) -> None:
        """`watch` keeps the virtual clock; without, typing takes as long as it takes."""
        self._client = RealtimeClient(url)
        self._watch = watch
        self._changed = asyncio.Event()
        self._reader: asyncio.Task[None] | None = None
        self._failure: dict[str, Any] | None = None

    async def __aenter__(self) -> Driver:
        await self._client.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The reader ends with the socket. Cancelled in the moment in which an event comes, it might go on.
        await self._client.__aexit__(kind, error, trace)
        if self._reader is not None:
            await asyncio.gather(self._reader, return_exceptions=True)

    async def configure(self, *, midstream: dict[str, Any], **session: Any) -> None:
        """Before `play`; the offsets and events that it needs are added."""
        await self._client.configure(**session, midstream={**midstream, "offsets": "code_points", "events": EVENTS})

    async def play(self, script: Script, response: dict[str, Any] | None = None) -> Played:
        """Types, sends with the last edit, and reads to the end. Raises `RuntimeError` when the server refuses."""
        self._reader = asyncio.create_task(self._read(), name="reader")
        began = time.time()
        edits = script.edits
        await self._type(edits)
        sent_at = time.time()
        if edits:
            last = edits[-1]
            await self._send_edit(last, len(script.text) - len(last.text) + last.end - last.start)
        await self._client.send("input_text_buffer.commit", text=script.text)
        await self._client.send("response.create", response=response or {})
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            await self._until_answered()
        return self._played(script, sent_at, sent_at - began)

    # Typing

    async def _type(self, edits: Sequence[Edit]) -> None:
        """All edits but the last, and the gaps after them."""
        length = 0
        was_quiet = False
        for edit, following in zip(edits, edits[1:], strict=False):
            sent_at = time.time()
            await self._send_edit(edit, length)
            length += len(edit.text) - (edit.end - edit.start)
            was_quiet = await self._wait(edit, sent_at, following.at_s - edit.at_s, was_quiet)

    async def _send_edit(self, edit: Edit, length: int) -> None:
        if self._watch is not None:
            self._watch.sent += 1
        if edit.start == edit.end == length:
            await self._client.send("input_text_buffer.append", text=edit.text)
        else:
            await self._client.send("input_text_buffer.replace", text=edit.text, start=edit.start, end=edit.end)

    async def _wait(self, edit: Edit, sent_at: float, gap_s: float, was_quiet: bool) -> bool:
        """Until the next edit is due; returns whether the server is quiet then."""
        while True:
            self._check()
            self._changed.clear()
            now = time.time()
            due = self._watch.due_at(edit, sent_at, gap_s, was_quiet) if self._watch else sent_at + gap_s
            if now >= due:
                break
            try:
                async with asyncio.timeout(due - now):
                    await self._changed.wait()
            except TimeoutError:
                pass
        if self._watch is None:
            return False
        quiet_at = self._watch.quiet_at()
        return was_quiet if due == sent_at else quiet_at is not None and quiet_at <= now

    # Reading

    async def _read(self) -> None:
        while True:
            event = await self._client.receive()
            if event["type"] == "error":
                self._failure = event["error"]
            elif self._watch is not None:
                self._watch.event(event, time.time())
            self._changed.set()

    def _check(self) -> None:
        if self._failure is not None:
            raise RuntimeError(f"the server refused: {self._failure}")
        if self._reader is not None and self._reader.done():
            self._reader.result()

    async def _until_answered(self) -> None:
        """`midstream.turn` follows `response.done`."""
        assert self._reader is not None
        seen = 0
        while True:
            self._check()
            self._changed.clear()
            events = self._client.events
            if any(event["type"] == "midstream.turn" for _, event in events[seen:]):
                return
            seen = len(events)
            changed = asyncio.create_task(self._changed.wait())
            await asyncio.wait({changed, self._reader}, return_when=asyncio.FIRST_COMPLETED)
            changed.cancel()

    def _played(self, script: Script, sent_at: float, played_s: float) -> Played:
        events = self._client.events
        deltas = [(at, event["delta"]) for at, event in events if event["type"] == "response.output_text.delta"]
        done_at, done = next((at, event["response"]) for at, event in events if event["type"] == "response.done")
        return Played(
            text="".join(delta for _, delta in deltas),
            status=done["status"],
            latency_s=done_at - sent_at,
            ttft_s=deltas[0][0] - sent_at if deltas else None,
            typed_s=script.duration_s,
            played_s=played_s,
            usage=done["usage"] or {},
            turn=next(event for _, event in events if event["type"] == "midstream.turn"),
            notes=[event for _, event in events if event["type"] == "midstream.inference.done"],
            discarded_notes=sum(event["type"] == "midstream.inference.discarded" for _, event in events),
        )
