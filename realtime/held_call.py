"""A context that is held for a tool call: what the engine is told meanwhile, and the output that is read ahead."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.client import ContextHandle
from engine.messages import ToolState
from realtime.argument_class import argument_class
from realtime.messages import ToolMessage, ToolPartial, ToolProgress, ToolResult, ToolStarted
from realtime.tools import ServerTool

if TYPE_CHECKING:
    from realtime.actor import Actor


@dataclass
class HeldCall:
    """`tokens` is all that stands before the result in the prompt. Messages may come twice.

    Whatever happens here changes when KV is there, never which tokens the answer is made from: the turn keeps of what
    was read ahead what the result really begins with.
    """

    actor: Actor
    context: ContextHandle
    tokens: list[int]
    call_id: str
    item_id: str
    tool: ServerTool
    arguments: str
    _run: ToolStarted | None = None
    _started_at: float = 0.0
    _last: ToolProgress | None = None
    _text: str = ""
    _over: bool = False

    def __post_init__(self) -> None:
        self._tokenizer = self.actor.node.format.stable_tokenizer()

    def begin(self) -> None:
        """Holds the context. Raises `EngineLost` and `EngineError`."""
        if self.context.held:
            # For an earlier call, whose result can be read during this one.
            self.actor.context.read_ahead(self.context, self.tokens)
        self.actor.context.hold(
            self.context,
            call=self.call_id,
            tool=self.tool.name,
            argument_class=argument_class(self.tool, self.arguments),
            expected_s=self.tool.expected_s(self.arguments),
        )

    def hear(self, message: ToolMessage) -> None:
        """What the worker says of the call."""
        match message:
            case ToolStarted() if message != self._run:
                self._run, self._started_at = message, time.monotonic()
                self._hint("started")
                self._read("")
            case ToolProgress():
                self._last = message
                self._report(message)
                remaining = self._remaining(message)
                if remaining is not None:
                    self._hint("progress", remaining)
            case ToolPartial(start=start, text=text) if start <= len(self._text):
                # A gap is a lost message: the text behind it would be read in the wrong place.
                self._report_partial(message)
                self._read(self._text[:start] + text)
            case ToolResult():
                self.end(message)

    def end(self, result: ToolResult) -> None:
        """The call is over: the sooner the engine knows, the sooner KV is back."""
        self._end("failed" if result.error else "finished")

    def cancel(self) -> None:
        """Nobody waits for the result any more."""
        self._end("cancelled")

    def _end(self, state: ToolState) -> None:
        if not self._over:
            self._over = True
            self._hint(state)

    def _hint(self, state: ToolState, expected_s: float | None = None) -> None:
        self.actor.context.hint(self.context, self.call_id, state, expected_s)

    def _remaining(self, step: ToolProgress) -> float | None:
        """Seconds until the end, if it goes on as it has gone so far."""
        if not self._started_at or not step.total or not 0 < step.progress <= step.total:
            return None
        elapsed = time.monotonic() - self._started_at
        return elapsed * (step.total - step.progress) / step.progress

    def _read(self, text: str) -> None:
        """Lets the engine read the output so far, but for the end, which its rest may still change."""
        if text == self._text:
            return
        self._text = text
        fmt = self.actor.node.format
        opening, before = fmt.partial_result()
        ids, stable = self._tokenizer.update(before + text)
        ahead = [*self.tokens, *opening, *ids[:stable]] if text else self.tokens
        self.actor.context.read_ahead(self.context, ahead)

    def _report(self, step: ToolProgress) -> None:
        self._emit(step, message=step.message)

    def _report_partial(self, message: ToolPartial) -> None:
        step = self._last or ToolProgress(message.call, message.attempt, 0.0)
        self._emit(step, message="", partial={"start": message.start, "text": message.text})

    def _emit(self, step: ToolProgress, **fields: object) -> None:
        self.actor.journal.emit_extension(
            "midstream.tool.progress", item_id=self.item_id, progress=step.progress, total=step.total, **fields
        )
