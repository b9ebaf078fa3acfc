"""The tool calls that the drafts of one turn have run before Send.

Only tools marked `speculative` are called: nobody outside notices them, and their results hold for the turn. What no
answer asks for is forgotten: until Send it was unsent text.
"""

from __future__ import annotations

import asyncio
import json

from realtime.ids import new_id
from realtime.messages import ToolMessage, ToolProgress, ToolResult
from realtime.node import Node
from realtime.tool_dispatch import Listener
from realtime.tools import ServerTool

MAX_CALLS = 4


class SpeculativeCall:
    """One call, running or done. What its worker says is kept until somebody listens."""

    def __init__(self, node: Node, session_id: str, tool: ServerTool, arguments: str) -> None:
        self.id = new_id("call_")
        self.tool = tool
        self.arguments = arguments
        self.is_used = False
        self._heard: list[ToolMessage] = []
        self._listener: Listener | None = None
        self._running = asyncio.create_task(node.tools.run(session_id, self.id, tool, arguments, self._hear))

    @property
    def output(self) -> ToolResult | None:
        """What has come of it; None while it runs and if it failed."""
        if not self._running.done() or self._running.cancelled():
            return None
        result = self._running.result()
        return None if result.error else result

    @property
    def is_of_use(self) -> bool:
        """It runs or has succeeded; what failed may succeed if it is tried again."""
        return not self._running.done() or self.output is not None

    async def result(self) -> ToolResult | None:
        """What comes of it, None if it is cancelled. Whoever waits may be cancelled without harm to the call."""
        await asyncio.wait({self._running})
        return None if self._running.cancelled() else self._running.result()

    async def take_over(self, listener: Listener) -> ToolResult:
        """Its result, as if the caller had begun it: `listener` hears what was said, and to cancel the caller cancels
        the call."""
        self._listener = listener
        for message in self._heard:
            listener(message)
        return await self._running

    def cancel(self) -> None:
        self._running.cancel()

    def _hear(self, message: ToolMessage) -> None:
        if isinstance(message, ToolProgress):
            self._heard = [known for known in self._heard if not isinstance(known, ToolProgress)]
        self._heard.append(message)
        if self._listener is not None:
            self._listener(message)


class SpeculativeCalls:
    """Keyed by name and canonical arguments; `close` when the turn is over."""

    def __init__(self, node: Node, session_id: str) -> None:
        self._node = node
        self._session_id = session_id
        self._calls: dict[tuple[str, str], SpeculativeCall] = {}

    def begin(self, tool: ServerTool, arguments: str) -> SpeculativeCall | None:
        """The call, begun now unless it was before. None for what failed before, and when the turn or the node has
        enough of them."""
        key = _key(tool, arguments)
        if (known := self._calls.get(key)) is not None:
            return known if known.is_of_use else None
        if len(self._calls) >= MAX_CALLS or self._node.tools.running >= self._node.settings.max_speculative_calls:
            return None
        call = self._calls[key] = SpeculativeCall(self._node, self._session_id, tool, arguments)
        return call

    def use(self, tool: ServerTool, arguments: str) -> SpeculativeCall | None:
        """The same call, if it was begun and there is something to gain from it."""
        call = self._calls.get(_key(tool, arguments))
        if call is None or not call.is_of_use:
            return None
        call.is_used = True
        return call

    def close(self) -> None:
        """Stops and forgets what was not used."""
        for call in self._calls.values():
            self._node.metrics.speculative_call(is_used=call.is_used)
            if not call.is_used:
                call.cancel()
                self._node.tools.forget(call.id)
        self._calls.clear()


def _key(tool: ServerTool, arguments: str) -> tuple[str, str]:
    return tool.name, json.dumps(json.loads(arguments), sort_keys=True)
