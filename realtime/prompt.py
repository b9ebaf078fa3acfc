"""Canonical token sequences: the shared system head and the conversation so far (design: history holds no notes)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from realtime.chat_format import ChatFormat
from realtime.conversation import FunctionCall, FunctionCallOutput, Item, McpCall, Message
from realtime.session_config import SessionConfig
from realtime.toolbox import Toolbox

MAX_RUNS = 256


class PromptBuilder:
    """One per session. Remembers what responses generated, token for token, so that their KV can be kept; anything not
    remembered (an edited conversation, a restarted host) is tokenised again."""

    def __init__(self, fmt: ChatFormat) -> None:
        self._fmt = fmt
        self._runs: OrderedDict[tuple[str, ...], list[int]] = OrderedDict()
        self._texts: dict[str, list[int]] = {}
        self._head: tuple[SessionConfig, tuple[str, ...], list[int]] | None = None

    def remember(self, item_ids: list[str], tokens: list[int]) -> None:
        """`tokens` is everything from the assistant's opening to its closing that made these items."""
        if item_ids:
            self._runs[tuple(item_ids)] = tokens
            while len(self._runs) > MAX_RUNS:
                self._runs.popitem(last=False)

    def know_text(self, item_id: str, ids: list[int]) -> None:
        """The tokens of a user message that were found while it was typed."""
        self._texts[item_id] = [*self._fmt.user_open, *ids, *self._fmt.user_close]

    def base(self, config: SessionConfig, items: Iterable[Item]) -> list[int]:
        """System head and all items as closed turns; system messages join the instructions."""
        items = list(items)
        notices = tuple(item.text for item in items if isinstance(item, Message) and item.role == "system")
        tokens = list(self._system(config, notices))
        tokens += self.turns([item for item in items if not (isinstance(item, Message) and item.role == "system")])
        return tokens

    def turns(self, items: list[Item]) -> list[int]:
        """Items as closed turns."""
        tokens: list[int] = []
        ids = [item.id for item in items]
        position = 0
        while position < len(items):
            run = next((key for key in self._runs if key == tuple(ids[position : position + len(key)])), None)
            if run is not None:
                tokens += self._runs[run]
                position += len(run)
            else:
                tokens += self._item(items[position])
                position += 1
        return tokens

    def _system(self, config: SessionConfig, notices: tuple[str, ...]) -> list[int]:
        if self._head is None or self._head[:2] != (config, notices):
            instructions = "\n\n".join(part for part in (config.instructions, *notices) if part)
            self._head = (config, notices, self._fmt.system(instructions, Toolbox.of(config).specs()))
        return self._head[2]

    def _item(self, item: Item) -> list[int]:
        fmt = self._fmt
        match item:
            case Message(role="assistant"):
                return [*fmt.assistant_open, *fmt.text(item.text), *fmt.assistant_close]
            case Message():
                if item.id not in self._texts:
                    self.know_text(item.id, fmt.text(item.text))
                return self._texts[item.id]
            case FunctionCallOutput():
                return fmt.tool_result(item.output)
            case FunctionCall():
                return self._call(item.name, item.arguments)
            case McpCall():
                error = f"Error: {item.error.message}" if item.error else ""
                return [*self._call(item.name, item.arguments), *fmt.tool_result(item.output or error)]

    def _call(self, name: str, arguments: str) -> list[int]:
        fmt = self._fmt
        return [*fmt.assistant_open, *fmt.call(name, arguments), *fmt.assistant_close]
