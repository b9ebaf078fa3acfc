"""Answers begun before Send (strategy `draft`), without changing a token of what is answered.

In a pause of typing the real answer begins, at background priority, in a fork of the session's context. If at
`response.create` everything that its tokens depend on is the same, the fork becomes the session's context and the
draft is the answer. If not, its tokens are a guess that the engine verifies. Nothing of a draft is shown, and of the
tools that it calls only those run that are marked `speculative`.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import msgspec

from engine.client import ContextHandle, EngineError, EngineLost, Generation
from engine.messages import GenerateParams, Prefilled
from realtime.node import Node
from realtime.opening import open_answer
from realtime.session_config import SessionConfig
from realtime.simultaneous.draft import Basis, Draft, Speculation, may_promote
from realtime.simultaneous.speculative_calls import SpeculativeCall, SpeculativeCalls
from realtime.toolbox import Toolbox
from realtime.tools import ServerTool
from realtime.turn_trace import TurnTrace

if TYPE_CHECKING:
    from realtime.actor import Actor

log = logging.getLogger(__name__)

Outcome = Literal["promoted", "partly_used", "unused"]

_QUESTION_MARKS = ("?", "\uff1f", "\u061f")
_CLOSERS = "\"'\u201d\u2019)]}\u00bb\u300d"


def looks_complete(text: str) -> bool:
    """Whether the text ends like a question, so that nothing more may come."""
    return text.rstrip().rstrip(_CLOSERS).endswith(_QUESTION_MARKS)


class Drafts:
    """The drafts of the text that is being typed. `answer_prompt` is the prompt that `response.create` would make now,
    None when there is nothing to answer; `on_prefilled` hears of every step that computed some of a draft's prompt."""

    def __init__(
        self,
        actor: Actor,
        answer_prompt: Callable[[], list[int] | None],
        on_prefilled: Callable[[Prefilled], None],
        on_pause: Callable[[], None],
    ) -> None:
        self._actor = actor
        self._answer_prompt = answer_prompt
        self._on_prefilled = on_prefilled
        self._on_pause = on_pause
        self._timer: asyncio.TimerHandle | None = None
        self._paused = False
        self._draft: Draft | None = None
        self._turn = self._new_tally()

    @property
    def is_open(self) -> bool:
        """Whether a draft is under way or waits for `response.create`."""
        return self._draft is not None

    def edited(self) -> None:
        """The unsent text changed; `revise` follows."""
        self._paused = False
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(self._actor.node.settings.draft_pause_s, self._pause)

    def _pause(self) -> None:
        self._paused = True
        self._on_pause()

    def revise(self) -> None:
        """Ends the draft unless it is what would be answered now."""
        if self._draft is None:
            return
        if self._draft.has_failed:
            self.cancel("engine")
        elif (basis := self._basis()) is None or not may_promote(self._draft.basis, basis):
            self.cancel("changed")

    def begin(self, context: ContextHandle) -> None:
        """Starts one if typing pauses and `context` has read the text: a fork then shares all of it."""
        if not self._is_due() or context.kv_tokens < len(context.tokens):
            return
        basis = self._basis()
        if basis is None or not basis.epoch or len(basis.prompt) >= self._actor.node.max_context:
            return
        self._turn.started += 1
        try:
            self._draft = Draft(context, basis, self._turn.last, self._speculation(), self._on_prefilled)
        except (EngineLost, EngineError) as error:
            log.info("session %s: no draft: %s", self._actor.session_id, error)
            return
        self._event("started")

    def cancel(self, reason: str) -> None:
        """Stops the draft at once; what it said may still be of use."""
        draft, self._draft = self._draft, None
        if draft is not None:
            self._turn.end(draft)
            self._event("discarded", reason=reason, tokens=len(draft.tokens))

    def hand_over(self) -> Drafted:
        """A turn begins, and what was drafted is its own now."""
        drafted = Drafted(self._actor, self._draft, self._turn)
        self._draft, self._turn = None, self._new_tally()
        return drafted

    def stop(self) -> None:
        """The session ends."""
        if self._timer is not None:
            self._timer.cancel()
        self.cancel("closed")
        self._actor.node.metrics.drafts(self._turn.started, None, 0, self._turn.tokens)
        self._turn.calls.close()
        self._turn = self._new_tally()

    def _new_tally(self) -> _Tally:
        return _Tally(SpeculativeCalls(self._actor.node, self._actor.session_id))

    def _speculation(self) -> Speculation:
        actor, tools = self._actor, Toolbox.of(self._actor.session.config)
        return Speculation(
            actor.node.format,
            tools,
            self._turn.calls,
            actor.node.settings.max_tool_calls + 1,
            lambda call: self._event("tool", name=call.tool.name),
        )

    def _is_due(self) -> bool:
        text = self._actor.session.buffer.text
        is_allowed = self._draft is None and self._turn.started < self._actor.node.settings.max_drafts
        return is_allowed and (self._paused or looks_complete(text))

    def _basis(self) -> Basis | None:
        """Of the answer to the text as it is; None where there is to be no draft."""
        node, config = self._actor.node, self._actor.session.config
        if self._actor.thinker.strategy != "draft" or not self._actor.journal.has_sockets:
            return None
        prompt = self._answer_prompt()
        if prompt is None:
            return None
        opening = open_answer(node.format, config, Toolbox.of(config), prompt)
        params = node.params(config, self._turn.seed_for(config), node.output_budget(config), opening.grammar)
        return Basis(opening.tokens, params, _epoch(node))

    def _event(self, step: str, **fields: object) -> None:
        revision = self._actor.session.buffer.revision
        self._actor.journal.emit_extension(f"midstream.draft.{step}", revision=revision, **fields)


@dataclass(frozen=True)
class Claimed:
    """A generation that began before Send, `computed_tokens` of the answer's first prompt needed no more computing."""

    generation: Generation
    computed_tokens: int


class Drafted:
    """What a turn gets: a draft that is its answer or else a guess at it, and the calls that drafts have run."""

    def __init__(self, actor: Actor, draft: Draft | None, tally: _Tally) -> None:
        self._actor = actor
        self._draft = draft
        self._tally = tally
        self._used = 0
        self._drafted: list[int] = []
        self._outcome: Outcome | None = "unused" if tally.started else None
        self._answer_begins: int | None = None

    def seed(self, config: SessionConfig) -> int:
        """The configured seed, or the one that the drafts were made with."""
        return self._tally.seed_for(config)

    @property
    def is_ahead(self) -> bool:
        """Whether the session's context has gone on already past what the turn has asked for."""
        return self._draft is not None and self._draft.is_ahead

    def claim(self, tokens: list[int], params: GenerateParams) -> Claimed | None:
        """The drafted generation, if it is what these would give; at the first one the draft has become the session's
        context and foreground. Else the draft goes no further. Raises `EngineLost`."""
        draft = self._draft
        if draft is None:
            return None
        generation = draft.claim(Basis(tokens, params, _epoch(self._actor.node)))
        if generation is None:
            self._let_go(draft)
            return None
        if self._outcome != "promoted":
            self._outcome, self._drafted = "promoted", [len(said) for said in draft.rounds]
            self._tally.tokens += sum(self._drafted)
            self._actor.context.adopt(draft.handle)
            draft.handle.priority = "foreground"
        self._used += self._drafted.pop(0)
        return Claimed(generation, draft.computed_tokens)

    def call(self, tool: ServerTool, arguments: str) -> SpeculativeCall | None:
        """The same call, if a draft has made it and it runs or has succeeded."""
        return self._tally.calls.use(tool, arguments)

    def guess(self, tokens: list[int], params: GenerateParams) -> GenerateParams:
        """`params` with what was drafted last, for the first generation after `tokens`."""
        if self._outcome != "unused" or self._answer_begins is not None:
            return params
        self._answer_begins = len(tokens)
        return msgspec.structs.replace(params, draft=self._tally.last)

    def end(self, tokens: list[int], trace: TurnTrace) -> None:
        """The turn is over and `tokens` are its prompt and answer: lets go of everything and counts what it was good
        for."""
        if self._draft is not None:
            self._let_go(self._draft)
        self._tally.calls.close()
        if self._answer_begins is not None:
            self._used = _common_length(self._tally.last, tokens[self._answer_begins :])
            self._outcome = "partly_used" if self._used else "unused"
        wasted = self._tally.tokens - self._used
        trace.drafts, trace.draft = self._tally.started, self._outcome
        trace.draft_tokens, trace.draft_wasted_tokens = self._used, wasted
        self._actor.node.metrics.drafts(self._tally.started, self._outcome, self._used, wasted)
        self._actor.thinker.drafts_ended(self._tally.started, self._used, wasted)

    def _let_go(self, draft: Draft) -> None:
        self._draft = None
        if self._outcome != "promoted":
            self._tally.end(draft)


class _Tally:
    """The drafts of one turn: how many, the tokens that they said, those of the last one that said any, the calls that
    they made, and the seed that they share with the answer, so that nothing is chosen among several."""

    def __init__(self, calls: SpeculativeCalls) -> None:
        self.calls = calls
        self.started = 0
        self.tokens = 0
        self.last: list[int] = []
        self._seed: int | None = None

    def seed_for(self, config: SessionConfig) -> int:
        if config.sampling.seed is not None:
            return config.sampling.seed
        if self._seed is None:
            self._seed = secrets.randbits(63)
        return self._seed

    def end(self, draft: Draft) -> None:
        draft.close()
        self.tokens += sum(len(said) for said in draft.rounds)
        self.last = draft.tokens or self.last


def _epoch(node: Node) -> str:
    """Of the live engine; empty when there is none."""
    client = node.link.current
    return client.ready.epoch if client is not None and not client.lost.is_set() else ""


def _common_length(left: list[int], right: list[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))
