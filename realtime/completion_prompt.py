"""The canonical prompt of a call that brings its whole conversation along."""

from __future__ import annotations

from realtime.chat_format import ChatFormat
from realtime.conversation import FunctionCall, Item, Message
from realtime.prompt import PromptBuilder
from realtime.session_config import SessionConfig


def prompt_of(fmt: ChatFormat, config: SessionConfig, items: list[Item]) -> list[int]:
    """System head with the tools of `config`, all items as closed turns, and the opening of the answer.

    Text and calls of one answer are one turn, as the model wrote them.
    """
    builder = PromptBuilder(fmt)
    for answer in _answers_with_calls(items):
        builder.remember([item.id for item in answer], _turn(fmt, answer))
    return [*builder.base(config, items), *fmt.assistant_open]


def _answers_with_calls(items: list[Item]) -> list[list[Message | FunctionCall]]:
    """The runs of several items, at most the first of which is text, that one answer was made of."""
    runs: list[list[Message | FunctionCall]] = [[]]
    for item in items:
        is_text = isinstance(item, Message)
        if is_text or not isinstance(item, FunctionCall):
            runs.append([])
        if isinstance(item, FunctionCall) or (isinstance(item, Message) and item.role == "assistant"):
            runs[-1].append(item)
    return [run for run in runs if len(run) > 1]


def _turn(fmt: ChatFormat, answer: list[Message | FunctionCall]) -> list[int]:
    tokens = list(fmt.assistant_open)
    for index, item in enumerate(answer):
        if index:
            tokens += fmt.text("\n")
        tokens += fmt.text(item.text) if isinstance(item, Message) else fmt.call(item.name, item.arguments)
    return [*tokens, *fmt.assistant_close]
