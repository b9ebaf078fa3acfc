"""What a free generation says: text for the user, and the tool calls that the model makes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engine.messages import Grammar
from realtime.chat_format import ChatFormat
from realtime.reasoning import ReasoningFilter
from realtime.tool_calls import CallDone, CallInvalid, TextPiece, ToolCallParser
from realtime.toolbox import Toolbox


@dataclass(frozen=True)
class ToolCall:
    """A call that the model has completed; `arguments` is canonical JSON. `problem` is set for a malformed one."""

    name: str
    arguments: str
    problem: str = ""


@dataclass(frozen=True)
class Heard:
    """What a batch of tokens adds to the answer. `is_over`: the model talks on after a call, so the last `unsaid`
    tokens are no part of the answer, and what comes is not worth waiting for."""

    texts: list[str]
    is_over: bool = False
    unsaid: int = 0


def forced_call(text: str) -> ToolCall:
    """A demanded call; `text` is its JSON object, valid by construction."""
    call = json.loads(text)
    return ToolCall(call["name"], json.dumps(call["arguments"], ensure_ascii=False))


def read_round(
    fmt: ChatFormat, tools: Toolbox, prompt: list[int], grammar: Grammar | None, said: list[int]
) -> tuple[list[ToolCall], list[int], int]:
    """One whole generation: its calls, the tokens that stay in the conversation, and how many of the answer's budget
    they cost. What was constrained by `grammar` is a demanded call."""
    if grammar is not None:
        detokenizer = fmt.detokenizer()
        text = grammar.given + detokenizer.feed(said) + detokenizer.finish()
        return [forced_call(text)], [*said, *fmt.forced_call_suffix], len(said)
    reader = AnswerReader(fmt, tools, prompt)
    kept = said[: len(said) - reader.feed(said).unsaid]
    reader.finish()
    return reader.calls, kept, len(kept)


class AnswerReader:
    """Reads one generation after `prompt`, in batches of any size: they say the same however they are cut."""

    def __init__(self, fmt: ChatFormat, tools: Toolbox, prompt: list[int]) -> None:
        self.calls: list[ToolCall] = []
        self._detokenizer = fmt.detokenizer()
        self._reasoning = ReasoningFilter(fmt.opens_thought(prompt))
        self._parser = ToolCallParser(tools.names) if tools else None

    @property
    def reasoned(self) -> bool:
        """Whether some of it was a reasoning block."""
        return self._reasoning.found

    def feed(self, batch: list[int]) -> Heard:
        """The next tokens. Not after `is_over`."""
        texts: list[str] = []
        # What ends at a certain token must not depend on how many arrive at once.
        parts = [batch] if self._parser is None else [[token] for token in batch]
        for i, part in enumerate(parts, 1):
            if self._take(self._reasoning.feed(self._detokenizer.feed(part)).answer, texts):
                return Heard(texts, is_over=True, unsaid=len(parts) - i)
        return Heard(texts)

    def finish(self) -> list[str]:
        """The texts that were held back for what did not come."""
        texts: list[str] = []
        rest = self._reasoning.feed(self._detokenizer.finish()).answer
        self._take(rest + self._reasoning.finish().answer, texts)
        if self._parser is not None:
            self._take_pieces(self._parser.finish(), texts)
        return texts

    def _take(self, text: str, texts: list[str]) -> bool:
        if not text:
            return False
        return self._take_pieces([TextPiece(text)] if self._parser is None else self._parser.feed(text), texts)

    def _take_pieces(self, pieces: Sequence[Any], texts: list[str]) -> bool:
        for piece in pieces:
            if isinstance(piece, CallDone):
                self.calls.append(ToolCall(piece.name, piece.arguments_json))
            elif isinstance(piece, CallInvalid):
                self.calls.append(ToolCall("", piece.raw, piece.reason))
            elif isinstance(piece, TextPiece) and self.calls:
                if piece.text.strip():
                    return True
            elif isinstance(piece, TextPiece):
                texts.append(piece.text)
        return False
