"""A model's chat template, rendered as transformers renders it, without transformers."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment


class UnsupportedTemplate(Exception):
    """The chat template cannot be rendered, or cannot be split into fixed pieces around the content."""


class ChatTemplate:
    """`special` strings are escaped inside JSON values, so that a tool's description cannot forge a turn.

    The date that a template may print is the one of construction: a head that changed at midnight would
    throw away every prefix in KV.
    """

    def __init__(self, source: str, variables: dict[str, str], special: Iterable[str] = ()) -> None:
        now = datetime.datetime.now()
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = _tojson(tuple(special))
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = now.strftime
        self._variables = variables
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise UnsupportedTemplate(f"the chat template has an error: {error}") from error

    @classmethod
    def from_folder(cls, folder: Path, special: Iterable[str] = ()) -> ChatTemplate:
        """Reads `chat_template.jinja`, or the one in `tokenizer_config.json`, of a model folder."""
        config = _read_json(folder / "tokenizer_config.json")
        file = folder / "chat_template.jinja"
        source = file.read_text(encoding="utf-8") if file.exists() else config.get("chat_template")
        if isinstance(source, list):
            source = {entry["name"]: entry["template"] for entry in source}.get("default")
        if not isinstance(source, str):
            raise UnsupportedTemplate("the model has no chat template")
        tokens = {name: _content(value) for name, value in config.items() if name.endswith("_token")}
        return cls(source, {name: value for name, value in tokens.items() if value is not None}, special)

    def render(
        self, messages: list[dict[str, Any]], open_answer: bool = False, tools: list[dict[str, Any]] | None = None
    ) -> str:
        """The prompt text; with `open_answer` it ends where the answer begins. Raises `UnsupportedTemplate`."""
        try:
            return self._template.render(
                messages=messages, tools=tools, documents=None, add_generation_prompt=open_answer, **self._variables
            )
        except (jinja2.TemplateError, TypeError, ValueError, AttributeError) as error:
            raise UnsupportedTemplate(f"the chat template refuses these messages: {error}") from error


def _tojson(special: tuple[str, ...]) -> Callable[..., str]:
    def tojson(
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
        return escape_special(text, special)

    return tojson


def escape_special(json_text: str, special: Iterable[str]) -> str:
    """The same JSON value with no `special` string in its text."""
    for token in special:
        if token in json_text and any(char.isalpha() for char in token):
            json_text = json_text.replace(token, f"\\u{ord(token[0]):04x}{token[1:]}")
    return json_text


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _read_json(path: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return data


def _content(token: Any) -> str | None:
    """A token in `tokenizer_config.json` is a string or an object with `content`."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None
