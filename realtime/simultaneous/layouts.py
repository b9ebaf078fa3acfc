"""The ua-spi layout of simultaneous inference, as tokens: user segment, assistant note, user segment, ...

The layout is LiveMind's (arXiv 2406.14319).

Both stages share one head, the canonical one, and say at the end of the last user turn which stage it is. So
each prompt begins with the whole of the one before it and its note, and nothing is computed twice. A turn
without notes has no cue either: its answer prompt is the ordinary chat prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

# Few words: tried with the 135M default model, longer instructions were copied into notes and answers.
TYPING_CUE = '\n\n(More follows. Note one useful fact, or "wait.")'
ANSWER_CUE = "\n\n(That is all.)"


class Format(Protocol):
    """What is needed of `realtime.chat_format.ChatFormat`."""

    user_open: list[int]
    user_close: list[int]
    assistant_open: list[int]
    assistant_close: list[int]

    def text(self, text: str) -> list[int]: ...


@dataclass(frozen=True)
class Entry:
    """One step: the new segments, and the tokens the model wrote after them (None = it chose to wait).

    `note_tokens` are exactly what was generated, without the stop token.
    """

    segments: str
    note_tokens: tuple[int, ...] | None = None


def chat_prompt(fmt: Format, head: Sequence[int], history: Sequence[int], text: str) -> list[int]:
    """The canonical prompt: system head, finished turns, the user's message, and the opened answer."""
    return [*head, *history, *_user_turn(fmt, text), *fmt.assistant_open]


def inference_prompt(
    fmt: Format, head: Sequence[int], history: Sequence[int], entries: Sequence[Entry], segments: str
) -> list[int]:
    """The prompt for an action about `segments`, the stable text after the `entries`."""
    noted, waiting = _noted(fmt, entries)
    return [*head, *history, *noted, *_user_turn(fmt, waiting + segments, TYPING_CUE), *fmt.assistant_open]


def answer_prompt(
    fmt: Format, head: Sequence[int], history: Sequence[int], entries: Sequence[Entry], tail: str
) -> list[int]:
    """The prompt for the answer, when `tail` is the text after the `entries`."""
    noted, waiting = _noted(fmt, entries)
    if not noted:
        return chat_prompt(fmt, head, history, waiting + tail)
    return [*head, *history, *noted, *_user_turn(fmt, waiting + tail, ANSWER_CUE), *fmt.assistant_open]


def open_turn(
    fmt: Format, head: Sequence[int], history: Sequence[int], entries: Sequence[Entry]
) -> tuple[list[int], str]:
    """While typing: everything up to the user turn that is being written, and the text that it begins with already
    (segments at which the model waited)."""
    noted, waiting = _noted(fmt, entries)
    return [*head, *history, *noted, *fmt.user_open], waiting


def _noted(fmt: Format, entries: Sequence[Entry]) -> tuple[list[int], str]:
    """The turns of the noted entries, and the segments after the last note, at which the model waited."""
    tokens: list[int] = []
    waiting = ""
    for entry in entries:
        waiting += entry.segments
        if entry.note_tokens is not None:
            tokens += [*_user_turn(fmt, waiting, TYPING_CUE), *fmt.assistant_open]
            tokens += [*entry.note_tokens, *fmt.assistant_close]
            waiting = ""
    return tokens, waiting


def _user_turn(fmt: Format, text: str, cue: str = "") -> list[int]:
    # The cue is tokenised apart, so that it cannot change the last tokens of the text.
    if not text.strip():
        cue = cue.lstrip()
    return [*fmt.user_open, *fmt.text(text), *fmt.text(cue), *fmt.user_close]
