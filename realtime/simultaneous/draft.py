"""One answer begun before Send: its generations, and between them the tool calls that it makes while nobody outside
can notice those."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from engine.client import ContextHandle, EngineError, EngineLost, Generation
from engine.messages import GenerateParams, Prefilled
from realtime.answer_reader import ToolCall, read_round
from realtime.argument_class import argument_class
from realtime.chat_format import ChatFormat
from realtime.simultaneous.speculative_calls import SpeculativeCall, SpeculativeCalls
from realtime.toolbox import Toolbox

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Basis:
    """All that the tokens of a generation depend on: text, history, instructions and tools are in `prompt`, what is
    sampled, stopped at and constrained in `params`, model and arithmetic in the `epoch` of the engine."""

    prompt: list[int]
    params: GenerateParams
    epoch: str


def may_promote(draft: Basis, answer: Basis) -> bool:
    """Whether the tokens of `draft` are those of `answer`."""
    return draft.epoch != "" and draft == answer


@dataclass
class Round:
    """One generation of a draft. `said` is all that it said, known once the next round needs it."""

    basis: Basis
    generation: Generation
    said: list[int] | None = field(default=None)


class Draft:
    """An answer under way in a context of its own, which `close` gives back in any state. A turn that `claim`s its
    first round owns that context, and the later rounds are claimed as they are needed."""

    def __init__(
        self,
        context: ContextHandle,
        basis: Basis,
        guess: list[int],
        speculation: Speculation,
        on_prefilled: Callable[[Prefilled], None],
    ) -> None:
        """`guess` is an earlier draft. Raises `EngineLost` or `EngineError`."""
        self._on_prefilled = on_prefilled
        self._is_known = False
        self._has_failed = False
        self._speculation = speculation
        self._claimed = 0
        self.handle = context.fork("background")
        self.handle.on_prefilled = self._prefilled
        try:
            self.handle.sync(basis.prompt)
            generation = self.handle.generate(msgspec.structs.replace(basis.params, draft=guess))
        except (EngineLost, EngineError):
            self.handle.close()
            raise
        self._rounds = [Round(basis, generation)]
        self._driver = asyncio.create_task(self._drive(), name="draft")

    @property
    def basis(self) -> Basis:
        return self._rounds[0].basis

    @property
    def rounds(self) -> list[list[int]]:
        """What each round says so far."""
        return [self._said(item) for item in self._rounds]

    @property
    def tokens(self) -> list[int]:
        """What the first round says so far."""
        return self._said(self._rounds[0])

    @property
    def has_failed(self) -> bool:
        return self._has_failed or self._rounds[0].generation.error is not None

    @property
    def is_ahead(self) -> bool:
        """Whether the context has gone on past what was claimed of it."""
        return 0 < self._claimed < len(self._rounds)

    @property
    def computed_tokens(self) -> int:
        """How many tokens of the first prompt need no more computing."""
        length = len(self.basis.prompt)
        return length if self.tokens else min(self.handle.kv_tokens, length)

    def claim(self, answer: Basis) -> Generation | None:
        """The next round's generation, if its tokens are those of `answer`. From the first one on the draft goes no
        further by itself. An engine that has said nothing yet may still refuse the fork."""
        if not self._is_known or self.has_failed or self._claimed == len(self._rounds):
            return None
        following = self._rounds[self._claimed]
        if following.generation.error is not None or not may_promote(following.basis, answer):
            return None
        self._driver.cancel()
        self._claimed += 1
        return following.generation

    def close(self) -> None:
        self._driver.cancel()
        self.handle.close()

    def _prefilled(self, item: Prefilled) -> None:
        self._is_known = True
        self._on_prefilled(item)

    def _said(self, item: Round) -> list[int]:
        return self.handle.tokens[len(item.basis.prompt) :] if item.said is None else item.said

    # Tool calls

    async def _drive(self) -> None:
        try:
            while len(self._rounds) < self._speculation.max_rounds and await self._go_on():
                pass
        except (EngineLost, EngineError) as error:
            log.info("draft: %s", error)
            self._has_failed = True
        except Exception:
            log.exception("draft failed")

    async def _go_on(self) -> bool:
        """Runs the calls of the last round when it has ended, and begins to answer on; false if that is not to be."""
        latest = self._rounds[-1]
        await latest.generation.ended()
        if latest.generation.finished is None:
            return False
        said = self._said(latest)
        fmt, params = self._speculation.format, latest.basis.params
        calls, kept, counted = read_round(fmt, self._speculation.tools, latest.basis.prompt, params.grammar, said)
        left = params.max_tokens - counted
        if latest.generation.finished.reason != "stop" or left <= 0:
            return False
        begun = self._speculation.begin(calls)
        if not begun:
            return False
        latest.said = said
        results = await self._results(begun, [*latest.basis.prompt, *kept])
        if results is None:
            return False
        tokens = [*latest.basis.prompt, *kept, *fmt.after_calls(results)]
        params = msgspec.structs.replace(params, max_tokens=left, grammar=None)
        self._rounds.append(Round(Basis(tokens, params, latest.basis.epoch), self._generate(tokens, params)))
        return True

    def _generate(self, tokens: list[int], params: GenerateParams) -> Generation:
        if not self.handle.held:
            self.handle.sync(tokens)
            return self.handle.generate(params)
        generation = self.handle.resume(tokens[self.handle.keep(tokens) :], params)
        assert generation is not None
        return generation

    async def _results(self, calls: list[SpeculativeCall], tokens: list[int]) -> list[str] | None:
        """The outputs, and the context of `tokens` is held until they are there; None if one has failed, which the
        answer may try anew."""
        self.handle.sync(tokens)
        if any(call.output is None for call in calls):
            self._hold(calls)
        results = [await call.result() for call in calls]
        if any(result is None or result.error for result in results):
            self.handle.resume([])
            return None
        return [result.output for result in results if result is not None]

    def _hold(self, calls: list[SpeculativeCall]) -> None:
        first = calls[0]
        expected = [call.tool.expected_s(call.arguments) for call in calls]
        self.handle.hold(
            "tool",
            call=first.id,
            tool=first.tool.name,
            argument_class=argument_class(first.tool, first.arguments),
            expected_s=max((seconds for seconds in expected if seconds is not None), default=None),
        )


@dataclass(frozen=True)
class Speculation:
    """What a draft needs to go on past a call. `on_call` hears of every call that it waits for."""

    format: ChatFormat
    tools: Toolbox
    calls: SpeculativeCalls
    max_rounds: int
    on_call: Callable[[SpeculativeCall], None]

    def begin(self, calls: list[ToolCall]) -> list[SpeculativeCall]:
        """All of them, begun now or before; none unless each is speculative and there is room for it."""
        tools = [self.tools.speculative_tool(call.name) for call in calls if not call.problem]
        if None in tools or len(tools) < len(calls):
            return []
        begun: list[SpeculativeCall] = []
        for tool, call in zip(tools, calls, strict=True):
            if tool is None or (started := self.calls.begin(tool, call.arguments)) is None:
                return []
            begun.append(started)
            self.on_call(started)
        return begun
