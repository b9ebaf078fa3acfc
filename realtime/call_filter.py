"""Takes the tool calls out of what a model says to a client that runs them itself. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence

from realtime.messages import FunctionCallPart
from realtime.tool_calls import CLOSE, OPEN, CallDone, CallInvalid, Piece, TextPiece, ToolCallParser


class CallFilter:
    """Feed it text in any pieces: the same text and the same `calls` come out.

    What no client could run is text, as the model said it: a malformed call, an unfinished one, and one of a function
    that is not among `names`. `is_over`: what comes is not worth waiting for, because the model talks on after a call,
    or has made the only one that is wanted. `given` is the beginning of a call that the prompt ends with.
    """

    def __init__(self, names: Collection[str], several: bool = True, given: str = "") -> None:
        self.calls: list[FunctionCallPart] = []
        self.is_over = False
        self._names = names
        self._several = several
        self._parser = ToolCallParser(names)
        self._parser.feed(given)
        self._fed = 0
        self._decided = 0

    @property
    def held(self) -> int:
        """How many of the characters fed may yet be a call, or belong to one that is not complete."""
        return self._fed - self._decided

    def feed(self, text: str) -> str:
        """The text for the user in it, as far as that is certain."""
        if self.is_over:
            return ""
        said = self._take(self._parser.feed(text))
        self._fed += len(text)
        if not self._parser.is_inside:
            self._decided = self._fed - self._parser.held
        return said

    def finish(self) -> str:
        """What was held back for a call that did not come."""
        return "" if self.is_over else self._take(self._parser.finish(), closing="")

    def _take(self, pieces: Sequence[Piece], closing: str = f"\n{CLOSE}") -> str:
        text = ""
        for piece in pieces:
            if isinstance(piece, TextPiece) and self.calls and piece.text.strip():
                self.is_over = True
            elif isinstance(piece, TextPiece):
                text += piece.text
            elif isinstance(piece, CallInvalid):
                text += f"{OPEN}\n{piece.raw.lstrip()}{closing}"
            elif isinstance(piece, CallDone) and piece.name not in self._names:
                name = json.dumps(piece.name, ensure_ascii=False)
                text += f'{OPEN}\n{{"name": {name}, "arguments": {piece.arguments_json}}}{closing}'
            elif isinstance(piece, CallDone):
                self.calls.append(FunctionCallPart(piece.name, piece.arguments_json))
                self.is_over = not self._several
            if self.is_over:
                break
        return text
