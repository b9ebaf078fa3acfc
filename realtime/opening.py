"""How an answer begins: freely, or with a tool call that the client demands."""

from __future__ import annotations

from dataclasses import dataclass

from engine.messages import Grammar
from realtime.chat_format import ChatFormat
from realtime.hermes import call_object_prefix, call_schema
from realtime.session_config import SessionConfig
from realtime.toolbox import Toolbox


@dataclass(frozen=True)
class Opening:
    """`tokens` is what the model goes on from; `given` is the part of the constrained text that they end with."""

    tokens: list[int]
    grammar: Grammar | None = None
    given: str = ""


def open_answer(fmt: ChatFormat, config: SessionConfig, tools: Toolbox, prompt: list[int]) -> Opening:
    """The first generation of a response to `prompt`.

    A demanded call is valid by construction: its frame is given, name and arguments are constrained.
    """
    names = tools.forced(config.tool_choice)
    if not names:
        return Opening(prompt)
    tokens = prompt[: len(prompt) - len(fmt.thought_open)] if fmt.opens_thought(prompt) else list(prompt)
    given = ""
    if len(names) == 1:
        given = call_object_prefix(names[0])
        tokens += fmt.forced_call_prefix(names[0])
    else:
        tokens += fmt.call_open
    schema = call_schema([spec for spec in tools.specs() if spec.name in names])
    return Opening(tokens, Grammar("json_schema", schema, given), given)
