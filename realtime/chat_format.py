"""The chat template as token pieces: what stands around the contents of a conversation.

The pieces are found once, when the model is loaded, by rendering the template with marker strings as
contents. Contents are tokenised apart from the template and without added tokens: a typed
"<|im_end|>" is plain text, and token ids do not depend on where text met template.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from realtime.chat_template import ChatTemplate, UnsupportedTemplate
from realtime.detokenizer import Detokenizer, TokenBytes
from realtime.hermes import CALL_SUFFIX, ToolSpec, call_prefix, teach, told_result, tool_response
from realtime.reasoning import OPEN as THINK
from realtime.stable_tokens import StableTokenizer, splits_safely
from realtime.tool_calls import OPEN

__all__ = ["ChatFormat", "ToolSpec", "UnsupportedTemplate"]

_SYSTEM, _USER, _ANSWER, _SECOND, _RESULT = (f"MARKER{name}MARKER" for name in ("ONE", "TWO", "THREE", "FOUR", "FIVE"))
_ROLES = {_SYSTEM: "system", _USER: "user", _ANSWER: "assistant", _SECOND: "user", _RESULT: "tool"}
_PROBE_CALL = {"type": "function", "id": "call00001", "function": {"name": "probe", "arguments": {}}}


class ChatFormat:
    """Pieces of one model's chat format, as token ids. Immutable; shared by all sessions.

    A conversation is `system(...)`, then per turn `user_open + text(...) + user_close + assistant_open + answer
    + assistant_close`. A tool call in an answer is followed by `assistant_close + tool_result(...) + assistant_open`.
    An answer that is to be generated begins with `thought_open` as well, which is empty for most models; history does
    not have it.
    """

    def __init__(
        self, template: ChatTemplate, tokenizer: Tokenizer, plain_tokenizer: Tokenizer, stop_token_ids: list[int]
    ) -> None:
        """Raises `UnsupportedTemplate` when the template is not append-only or rearranges contents."""
        self.tokenizer = tokenizer
        self._plain = plain_tokenizer
        self._template = template
        self._turns = turns = _find_turns(template)
        self._native_tools = _has_native_tools(template, turns)
        # A template with tools of another kind is not asked: taught tools have results of their own.
        self._tool_turn = _find_tool_turn(template, turns) if self._native_tools else None
        self.user_open = self._fixed(turns.user_open)
        self.user_close = self._fixed(turns.user_close)
        self.assistant_open = self._fixed(turns.assistant_open)
        self.assistant_close = self._fixed(turns.assistant_close)
        self.thought_open = self._fixed(turns.thought_open)
        self.call_open = self._fixed(f"{OPEN}\n")
        self.forced_call_suffix = self._fixed(CALL_SUFFIX)
        self.stop_token_ids = sorted({*stop_token_ids, *self._first_special(self.assistant_close)})
        self._token_bytes = TokenBytes(tokenizer)
        self._splits_safely = splits_safely(plain_tokenizer)

    @classmethod
    def from_folder(cls, folder: str | Path) -> ChatFormat:
        """From a converted model's folder (`tokenizer.json`, `chat_template.jinja`, configs)."""
        folder = Path(folder)
        file = folder / "tokenizer.json"
        tokenizer = Tokenizer.from_file(str(file))
        special = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
        template = ChatTemplate.from_folder(folder, special)
        return cls(template, tokenizer, plain_tokenizer(file.read_text(encoding="utf-8")), _eos_ids(folder))

    def text(self, text: str) -> list[int]:
        """Ids of any content; never an added token."""
        ids: list[int] = self._plain.encode(text, add_special_tokens=False).ids
        return ids

    def opens_thought(self, tokens: list[int]) -> bool:
        """Whether a prompt ends inside a reasoning block."""
        return bool(self.thought_open) and tokens[-len(self.thought_open) :] == self.thought_open

    def system(self, instructions: str = "", tools: list[ToolSpec] | None = None) -> list[int]:
        """The head of every prompt. Without `instructions` it is the template's own default.

        Tools are placed by the template if it knows Hermes tools, else taught at the end of the system prompt.
        """
        turns = self._turns
        if tools and self._native_tools:
            return self._native_system(instructions, tools)
        if not tools and not instructions:
            return self._fixed(turns.default_head)
        content = instructions or turns.default_instructions
        if tools:
            content = f"{content}\n\n{teach(tools)}" if content else teach(tools)
        return self._fixed(turns.system_open) + self.text(content) + self._fixed(turns.system_close)

    def tool_result(self, text: str) -> list[int]:
        """A complete turn with the result of a tool call."""
        if self._tool_turn is None:
            content = tool_response(text) if self._native_tools else told_result(text)
            return self.user_open + self.text(content) + self.user_close
        opening, closing = self._tool_turn
        return self._fixed(opening) + self.text(text) + self._fixed(closing)

    def after_calls(self, results: list[str]) -> list[int]:
        """All that follows an answer whose calls gave `results`, up to where the model goes on."""
        told = [token for result in results for token in self.tool_result(result)]
        return [*self.assistant_close, *told, *self.assistant_open, *self.thought_open]

    def partial_result(self) -> tuple[list[int], str]:
        """What stands before a tool's output in `tool_result`: tokens, and text that is tokenised with the output."""
        if self._tool_turn is not None:
            return self._fixed(self._tool_turn[0]), ""
        content = tool_response(_RESULT) if self._native_tools else told_result(_RESULT)
        return self.user_open, content.partition(_RESULT)[0]

    def forced_call_prefix(self, name: str) -> list[int]:
        """The beginning of an answer that calls `name`, up to the arguments; after them comes `forced_call_suffix`."""
        return self._fixed(call_prefix(name))

    def call(self, name: str, arguments: str) -> list[int]:
        """A complete call, as an answer contains it."""
        return [*self.forced_call_prefix(name), *self.text(f" {arguments}}}"), *self.forced_call_suffix]

    def detokenizer(self) -> Detokenizer:
        """For one generation."""
        return Detokenizer(self._token_bytes)

    def token_bytes(self, token_id: int) -> bytes:
        """What a token stands for; of a special one, its name."""
        return self._token_bytes[token_id] or (self.tokenizer.id_to_token(token_id) or "").encode()

    def stable_tokenizer(self) -> StableTokenizer:
        """For one input buffer."""
        return StableTokenizer(self._plain, self._splits_safely)

    def _fixed(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def _native_system(self, instructions: str, tools: list[ToolSpec]) -> list[int]:
        messages = _messages(_SYSTEM, _USER) if instructions else _messages(_USER)
        rendered = self._template.render(messages, tools=[tool.to_schema() for tool in tools])
        head = rendered[: rendered.rindex(_USER)].removesuffix(self._turns.user_open)
        if not instructions:
            return self._fixed(head)
        before, _, after = head.partition(_SYSTEM)
        return self._fixed(before) + self.text(instructions) + self._fixed(after)

    def _first_special(self, ids: list[int]) -> list[int]:
        added = self.tokenizer.get_added_tokens_decoder()
        return [id_ for id_ in ids if id_ in added and added[id_].special][:1]


@dataclass(frozen=True)
class _Turns:
    default_head: str
    default_instructions: str
    system_open: str
    system_close: str
    user_open: str
    user_close: str
    assistant_open: str
    assistant_close: str
    thought_open: str


def _messages(*contents: str) -> list[dict[str, Any]]:
    return [{"role": _ROLES[content], "content": content} for content in contents]


def _find_turns(template: ChatTemplate) -> _Turns:
    asked = template.render(_messages(_SYSTEM, _USER))
    opened, thought_open = _split_thought(template.render(_messages(_SYSTEM, _USER), open_answer=True))
    answered = template.render(_messages(_SYSTEM, _USER, _ANSWER))
    again = template.render(_messages(_SYSTEM, _USER, _ANSWER, _SECOND))
    system_open, head_end, user_close = _split(asked, _SYSTEM, _USER)
    assistant_close = _split(answered, _SYSTEM, _USER, _ANSWER)[-1]
    # What stands before an answer is taken from the opened prompt: Qwen3's template writes an empty thought before the
    # last answer, and takes it out when the next turn comes.
    turn = opened + _ANSWER + assistant_close
    if not opened.startswith(asked) or not again.startswith(turn):
        raise UnsupportedTemplate("the chat template rewrites earlier turns when a turn is added")
    user_open, _ = _split(again.removeprefix(turn), _SECOND)
    system_close = head_end.removesuffix(user_open)
    default_head = _split(template.render(_messages(_USER)), _USER)[0].removesuffix(user_open)
    default = default_head.removeprefix(system_open).removesuffix(system_close)
    turns = _Turns(
        default_head=default_head,
        default_instructions=default if default_head == system_open + default + system_close else "",
        system_open=system_open,
        system_close=system_close,
        user_open=user_open,
        user_close=user_close,
        assistant_open=opened.removeprefix(asked),
        assistant_close=assistant_close,
        thought_open=thought_open,
    )
    _check_composition(template, turns)
    return turns


def _check_composition(template: ChatTemplate, turns: _Turns) -> None:
    """Three turns written with our pieces must be what the template writes, with a system message and without."""
    question = f"{turns.user_open}{_USER}{turns.user_close}{turns.assistant_open}"
    dialogue = 2 * f"{question}{_ANSWER}{turns.assistant_close}" + question + turns.thought_open
    messages = _messages(_USER, _ANSWER, _USER, _ANSWER, _USER)
    head = f"{turns.system_open}{_SYSTEM}{turns.system_close}"
    alike = template.render(_messages(_SYSTEM) + messages, open_answer=True) == head + dialogue
    if not alike or template.render(messages, open_answer=True) != turns.default_head + dialogue:
        raise UnsupportedTemplate("the chat template does not write every turn alike")


def _split_thought(opened: str) -> tuple[str, str]:
    """An opened prompt without the reasoning block that some templates open in it (DeepSeek-R1's), and that opening."""
    match = re.search(rf"{THINK}\s*\Z", opened)
    return (opened[: match.start()], match[0]) if match else (opened, "")


def _split(rendered: str, *markers: str) -> list[str]:
    """The text around the markers, each of which must stand there once and in this order."""
    parts = []
    for marker in markers:
        before, found, rendered = rendered.partition(marker)
        if not found or "MARKER" in before:
            raise UnsupportedTemplate("the chat template drops, repeats or reorders contents")
        parts.append(before)
    if "MARKER" in rendered:
        raise UnsupportedTemplate("the chat template drops, repeats or reorders contents")
    return [*parts, rendered]


def _find_tool_turn(template: ChatTemplate, turns: _Turns) -> tuple[str, str] | None:
    """What stands around a tool result, if the template knows that role and does not just print its name."""
    calling = [*_messages(_SYSTEM, _USER), {"role": "assistant", "content": "", "tool_calls": [_PROBE_CALL]}]
    try:
        before = template.render(calling)
        known = template.render([*calling, *_messages(_RESULT)])
        generic = _render_or_none(template, [*calling, {"role": "nobody", "content": _RESULT}])
        if not known.startswith(before) or generic == known.replace("tool", "nobody"):
            return None
        opening, closing = _split(known.removeprefix(before), _RESULT)
        after = template.render([*calling, *_messages(_RESULT)], open_answer=True)
    except UnsupportedTemplate:
        return None
    return (opening, closing) if after == known + turns.assistant_open + turns.thought_open else None


def _has_native_tools(template: ChatTemplate, turns: _Turns) -> bool:
    """Whether the template puts Hermes tools in the head, in JSON."""
    probe = ToolSpec("MARKERNAME", "x").to_schema()
    rendered = _render_or_none(template, _messages(_SYSTEM, _USER), tools=[probe])
    without = _render_or_none(template, _messages(_USER), tools=[probe])
    if rendered is None or without is None:
        return False
    head, _, tail = rendered.partition(_USER)
    fits = head.endswith(turns.user_open) and head.count(_SYSTEM) == 1 and tail == turns.user_close
    alike = without.partition(_USER)[0].endswith(turns.user_open)
    return fits and alike and "<tool_call>" in head and json.dumps(probe, ensure_ascii=False) in head


def _render_or_none(template: ChatTemplate, messages: list[dict[str, Any]], **options: Any) -> str | None:
    try:
        return template.render(messages, **options)
    except UnsupportedTemplate:
        return None


def plain_tokenizer(tokenizer_json: str) -> Tokenizer:
    """The tokenizer without its markup: no typed text can become an added token such as <|im_end|> or <tool_call>.

    Added tokens of other kinds (runs of spaces, say) stay. Without the post-processor, offsets are untrimmed.
    """
    data = json.loads(tokenizer_json)
    added = data.get("added_tokens") or []
    data["added_tokens"] = [t for t in added if not t["special"] and not t["content"].lstrip().startswith("<")]
    data["post_processor"] = None
    tokenizer: Tokenizer = Tokenizer.from_str(json.dumps(data))
    tokenizer.encode_special_tokens = True
    return tokenizer


def _eos_ids(folder: Path) -> list[int]:
    """All end tokens that the model's configuration files name."""
    ids: set[int] = set()
    for name in ("config.json", "generation_config.json"):
        file = folder / name
        value = json.loads(file.read_text(encoding="utf-8")).get("eos_token_id") if file.exists() else None
        ids.update(value if isinstance(value, list) else [] if value is None else [value])
    return sorted(ids)
