"""Incremental parser of assistant text into text and Hermes tool calls.

A call is `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`. It is announced when its JSON closes.
White space next to a call belongs to neither text nor call. Some models leave the tags out (Qwen2.5-Coder does), so an
answer that begins with the JSON of a known tool is a call too.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, NoReturn

OPEN = "<tool_call>"
CLOSE = "</tool_call>"
MAX_NAME = 128
MAX_BARE_CALL = 4096


@dataclass(frozen=True)
class TextPiece:
    text: str


@dataclass(frozen=True)
class CallStarted:
    name: str


@dataclass(frozen=True)
class CallArguments:
    delta: str


@dataclass(frozen=True)
class CallDone:
    """`arguments_json` is always a JSON object, as `json.dumps` writes it."""

    name: str
    arguments_json: str


@dataclass(frozen=True)
class CallInvalid:
    """A call that cannot be run; `raw` is what stood between the tags."""

    raw: str
    reason: str


Piece = TextPiece | CallStarted | CallArguments | CallDone | CallInvalid


class ToolCallParser:
    """Feed it text in any pieces: apart from where text is cut, the same pieces come out.

    `names` are the tools that may be called without tags, at the very beginning.
    """

    def __init__(self, names: Collection[str] = ()) -> None:
        self._names = names
        self._at_start = bool(names)
        self._bare = _JsonScanner()
        self._pending = ""
        self._in_call = False
        self._after_call = False
        self._json = _JsonScanner()

    @property
    def is_inside(self) -> bool:
        """Whether a call has begun that has not ended."""
        return self._in_call

    @property
    def held(self) -> int:
        """How many of the last characters fed are still undecided, without the tag of a call that has begun."""
        return len(self._pending)

    def feed(self, text: str) -> list[Piece]:
        """What `text` completes, in order."""
        self._pending += text
        pieces: list[Piece] = []
        if self._at_start and not self._begin(pieces):
            return pieces
        while self._call_step(pieces) if self._in_call else self._text_step(pieces):
            pass
        return pieces

    def finish(self) -> list[Piece]:
        """What is left at the end: held-back text, or an unfinished call as `CallInvalid`."""
        if self._at_start:
            # What was held back as the beginning of a call is text after all.
            self._at_start = False
            return [*self.feed(""), *self.finish()]
        rest, self._pending = self._pending, ""
        if self._in_call:
            return [CallInvalid(rest, "the call is unfinished")]
        if self._after_call:
            rest = rest.lstrip("} \t\r\n")
        # Half a tag is not text even when nothing follows it.
        rest = rest[: _tag_start(rest)] if len(rest) - _tag_start(rest) > 1 else rest
        return [TextPiece(rest)] if rest else []

    def _begin(self, pieces: list[Piece]) -> bool:
        """Whether it is decided how the text begins: with the bare JSON of a call, which is consumed, or not."""
        text = self._pending
        end = self._bare.scan(text) if _may_begin_call(text) else 0
        if end is None and not self._bare.is_broken and len(text) <= MAX_BARE_CALL:
            return False
        self._at_start = False
        if end and not self._bare.is_broken and end <= MAX_BARE_CALL:
            call = _parse_call(text[:end].strip())
            if isinstance(call[-1], CallDone) and call[-1].name in self._names:
                pieces.extend(call)
                self._pending = text[end:]
                self._after_call = True
        return True

    def _text_step(self, pieces: list[Piece]) -> bool:
        """Consumes text up to and with the next tag; False when more input is needed."""
        if self._after_call:
            # Small models close one brace too many.
            self._pending = self._pending.lstrip("} \t\r\n")
        found = [(position, tag) for tag in (OPEN, CLOSE) if (position := self._pending.find(tag)) >= 0]
        if found:
            position, tag = min(found)
            self._emit_text(self._pending[:position].rstrip(), pieces)
            self._pending = self._pending[position + len(tag) :]
            self._in_call = tag == OPEN
            self._after_call = True
            return True
        end = len(self._pending[: _tag_start(self._pending)].rstrip())
        self._emit_text(self._pending[:end], pieces)
        self._pending = self._pending[end:]
        return False

    def _emit_text(self, text: str, pieces: list[Piece]) -> None:
        if text:
            pieces.append(TextPiece(text))
            self._after_call = False

    def _call_step(self, pieces: list[Piece]) -> bool:
        """Consumes one whole call; False when more input is needed."""
        end = self._json.scan(self._pending)
        if end is None:
            return False
        raw = self._pending[:end]
        self._pending = self._pending[end:]
        pieces.extend(_parse_call(raw.strip()))
        self._json = _JsonScanner()
        self._in_call = False
        return True


class _JsonScanner:
    """Finds the end of a JSON object, or of what should have been one: there the closing tag ends it."""

    def __init__(self) -> None:
        self._position = 0
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._broken = False

    @property
    def is_broken(self) -> bool:
        """It is no JSON object."""
        return self._broken

    def scan(self, text: str) -> int | None:
        """`text` is everything since the opening tag; each character is looked at once."""
        while not self._broken and self._position < len(text):
            if text[self._position] == "<" and not self._in_string:
                self._broken = True
                break
            self._step(text[self._position])
            self._position += 1
            if self._depth == 0 and text[self._position - 1] == "}" and not self._broken:
                return self._position
        if not self._broken:
            return None
        # Two tags can end a broken call: its own closing one, or the next call's opening one.
        ends = [position for tag in (OPEN, CLOSE) if (position := text.find(tag, self._position)) >= 0]
        if not ends:
            self._position = max(self._position, len(text) - len(CLOSE) + 1)
        return min(ends, default=None)

    def _step(self, char: str) -> None:
        if self._in_string:
            if char in "\r\n":
                self._broken = True
            elif self._escaped:
                self._escaped = False
            else:
                self._escaped = char == "\\"
                self._in_string = char != '"'
        elif char == '"':
            self._in_string = True
            self._broken = self._depth == 0
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
            self._broken = self._depth < 0
        elif self._depth == 0 and not char.isspace():
            self._broken = True


def _parse_call(raw: str) -> list[Piece]:
    try:
        call = json.loads(raw, parse_constant=_refuse_constant)
        name, arguments = _name_and_arguments(call)
        canonical = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        canonical.encode()
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        return [CallInvalid(raw, reason)]
    return [CallStarted(name), CallArguments(canonical), CallDone(name, canonical)]


def _name_and_arguments(call: Any) -> tuple[str, dict[str, Any]]:
    if not isinstance(call, dict):
        raise ValueError("the call is not a JSON object")
    name = call.get("name")
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
        raise ValueError("the call has no valid name")
    name.encode()
    arguments = call.get("arguments", call.get("parameters"))
    if isinstance(arguments, str):
        arguments = json.loads(arguments or "{}", parse_constant=_refuse_constant)
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise ValueError("the arguments are not a JSON object")
    return name, arguments


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _may_begin_call(text: str) -> bool:
    """Whether `text` is, as far as it goes, white space and a JSON object whose first key is "name"."""
    start = "".join(text[:256].split())[: len(_CALL_START)]
    return start == _CALL_START[: len(start)]


_CALL_START = '{"name":'


def _tag_start(text: str) -> int:
    """Where a tag begins that `text` ends in the middle of; else its length."""
    for size in range(min(len(text), len(CLOSE) - 1), 0, -1):
        if OPEN.startswith(text[-size:]) or CLOSE.startswith(text[-size:]):
            return len(text) - size
    return len(text)
