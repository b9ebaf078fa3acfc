"""One response, run: prompt -> generate -> [tool call -> hold -> result -> resume]* -> `response.done`.

Every exit, cancel included, emits exactly one `response.done`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

from engine.client import ContextHandle, EngineError, EngineLost
from engine.messages import GenerateParams, Grammar
from realtime.answer_reader import AnswerReader, ToolCall, forced_call
from realtime.held_call import HeldCall
from realtime.ids import new_id
from realtime.messages import ToolResult
from realtime.opening import open_answer
from realtime.response import Event, Response
from realtime.session_config import SessionConfig
from realtime.simultaneous.drafts import Drafted
from realtime.simultaneous.speculative_calls import SpeculativeCall
from realtime.tasks import cancel_and_wait
from realtime.toolbox import Toolbox
from realtime.turn_trace import TurnTrace
from realtime.turn_usage import TurnUsage

if TYPE_CHECKING:
    from realtime.actor import Actor

log = logging.getLogger(__name__)

MAX_ENGINE_LOSSES = 2


class _OutOfTokens(Exception):
    """The token budget ended in the middle of a tool call."""


class Turn:
    """`tokens` is what the context holds or must hold: the prompt and, as it comes, what follows it. `reasoned` is set
    when some of that is a reasoning block, which no later turn gets to see."""

    def __init__(
        self,
        actor: Actor,
        response: Response,
        config: SessionConfig,
        prompt: list[int],
        trace: TurnTrace,
        drafted: Drafted,
    ) -> None:
        self.response = response
        self.usage = TurnUsage()
        self.tokens = list(prompt)
        self.trace = trace
        self.reasoned = False
        self._actor = actor
        self._node = actor.node
        self._config = config
        self._prompt_length = len(prompt)
        self._tools = Toolbox.of(config)
        self._budget = self._node.output_budget(config)
        self._drafted = drafted
        self._seed = drafted.seed(config)
        self._losses = 0
        self._reason = ""
        self._task: asyncio.Task[None] | None = None
        self._cancelled = asyncio.Event()

    def start(self) -> None:
        self._emit(self.response.created())
        self._task = asyncio.create_task(self._run(), name=f"turn {self.response.id}")

    def cancel(self) -> None:
        """Ends the turn with status cancelled, whatever it is doing."""
        self._cancelled.set()

    async def aclose(self) -> None:
        """Cancels and waits for `response.done` to be emitted."""
        self.cancel()
        if self._task is not None:
            await self._task

    async def _run(self) -> None:
        """Races the work against `cancel`: a task that is cancelled before its first step would never say done."""
        work = asyncio.create_task(self._outcome())
        stop = asyncio.create_task(self._cancelled.wait())
        await asyncio.wait({work, stop}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        await cancel_and_wait({work})
        cancelled = "cancelled", {"type": "cancelled", "reason": "client_cancelled"}
        self._finish(*(cancelled if work.cancelled() else work.result()))

    async def _outcome(self) -> tuple[str, Event | None]:
        """Status and status details. Raises only `CancelledError`."""
        try:
            await self._rounds()
            if self._reason == "length":
                return "incomplete", {"type": "incomplete", "reason": "max_output_tokens"}
            return "completed", None
        except _OutOfTokens:
            return "incomplete", {"type": "incomplete", "reason": "max_output_tokens"}
        except EngineLost:
            return "failed", _failure("engine_unavailable")
        except EngineError as error:
            self._actor.context.discard()
            return "failed", _failure(error.code)
        except Exception:
            log.exception("turn failed")
            return "failed", _failure("internal_error")

    # Rounds: one generation each, until one ends without a tool call.

    async def _rounds(self) -> None:
        for number in range(self._node.settings.max_tool_calls + 1):
            forced = number == 0 and self._tools.forced(self._config.tool_choice)
            calls = [await self._forced_round()] if forced else await self._free_round()
            if not calls or await self._run_calls(calls):
                return

    async def _forced_round(self) -> ToolCall:
        """A call that is valid by construction."""
        fmt = self._node.format
        opening = open_answer(fmt, self._config, self._tools, self.tokens)
        self.reasoned |= fmt.opens_thought(self.tokens)
        self.tokens = list(opening.tokens)
        call = forced_call(opening.given + await self._constrained(opening.grammar))
        self.tokens += fmt.forced_call_suffix
        return call

    async def _constrained(self, grammar: Grammar | None) -> str:
        detokenizer = self._node.format.detokenizer()
        text = ""
        async for batch in self._stream(grammar):
            self.trace.first_token()
            text += detokenizer.feed(batch)
        text += detokenizer.finish()
        if self._reason != "stop":
            raise _OutOfTokens
        return text

    async def _free_round(self) -> list[ToolCall]:
        """Answer text goes out as it comes; returns the calls the model made, if any."""
        reader = AnswerReader(self._node.format, self._tools, self.tokens)
        stream = self._stream(None)
        async for batch in stream:
            self.trace.first_token()
            heard = reader.feed(batch)
            self.reasoned |= reader.reasoned
            self._say(heard.texts)
            if heard.is_over:
                self._unsay(heard.unsaid)
                break
        self._say(reader.finish())
        await stream.aclose()
        self._emit(self.response.close_message("completed" if self._reason != "length" else "incomplete", self._last()))
        return reader.calls

    def _say(self, texts: list[str]) -> None:
        for text in texts:
            self._emit(self.response.delta(text, self._last()))

    async def _stream(self, grammar: Grammar | None) -> AsyncGenerator[list[int]]:
        """Tokens of one generation, appended to `tokens`. An engine that dies is waited for and the generation goes on
        from what was already said; constrained ones begin anew, since nothing of them was shown."""
        start, budget = len(self.tokens), self._budget
        self._reason = ""
        while True:
            params = self._node.params(self._config, self._seed, self._budget, grammar)
            try:
                generation = await self._generate(params)
                async for batch in generation:
                    self.tokens += batch
                    self._budget -= len(batch)
                    self.usage.generated(len(batch))
                    yield batch
            except EngineLost:
                self._losses += 1
                if self._losses > MAX_ENGINE_LOSSES:
                    raise
                if grammar is not None:
                    del self.tokens[start:]
                    self.usage.generated(self._budget - budget)
                    self._budget = budget
                if not self._budget:
                    self._reason = "length"
                    return
                continue
            if generation.finished is not None:
                self._reason = generation.finished.reason
                self.usage.add(generation.finished)
            return

    def _unsay(self, count: int) -> None:
        """The last `count` tokens are not part of the answer."""
        if count:
            del self.tokens[-count:]
            self._budget += count
            self.usage.generated(-count)

    async def _generate(self, params: GenerateParams) -> Any:
        context = await self._actor.context.wait()
        self.trace.asked()
        if (claimed := self._drafted.claim(self.tokens, params)) is not None:
            self.usage.promoted(len(self.tokens), claimed.computed_tokens)
            return claimed.generation
        context.priority = "foreground"
        if context.held:
            # What was read ahead of the result may have been a wrong guess.
            known = context.keep(self.tokens)
            self.usage.began(len(self.tokens), context.kv_tokens)
            return context.resume(self.tokens[known:], params)
        context.sync(self.tokens)
        self.usage.began(len(self.tokens), context.kv_tokens)
        return context.generate(self._drafted.guess(self.tokens, params))

    # Tool calls

    async def _run_calls(self, calls: list[ToolCall]) -> bool:
        """Runs what the server can run; True when that ends the response: the client owns one of the functions, or no
        tokens are left."""
        fmt = self._node.format
        if any(self._tools.is_client_function(call.name) for call in calls):
            self._hand_over(calls)
            return True
        if self._reason == "length" or not self._budget:
            # Nothing is left to answer with.
            self._reason = "length"
            return True
        context = await self._actor.context.wait()
        if not self._drafted.is_ahead:
            context.sync(self.tokens)
        self.tokens += fmt.assistant_close
        for call in calls:
            self.tokens += fmt.tool_result(await self._run_call(call, context))
        self.tokens += [*fmt.assistant_open, *fmt.thought_open]
        return False

    def _hand_over(self, calls: list[ToolCall]) -> None:
        """Only whole calls: a malformed one would stay in the history for ever."""
        for call in calls:
            if not call.problem:
                self._emit(self.response.open_call("function_call", call.name))
                self._emit(self.response.call_arguments(call.arguments))
                self._emit(self.response.call_arguments_done())
                self._emit(self.response.close_call())

    async def _run_call(self, call: ToolCall, context: ContextHandle) -> str:
        """The text that the model gets back: the tool's output, or what went wrong."""
        tool = self._tools.server_tool(call.name)
        if call.problem or tool is None:
            return f"Error: {call.problem or 'there is no tool of that name'}"
        self._emit(self.response.open_call("mcp_call", call.name))
        self._emit(self.response.call_arguments(call.arguments))
        self._emit(self.response.call_arguments_done())
        self._emit(self.response.call_in_progress())
        started = time.time()
        drafted = self._drafted.call(tool, call.arguments)
        result = drafted.output if drafted is not None else None
        if result is None:
            call_id = drafted.id if drafted is not None else new_id("call_")
            held = HeldCall(
                self._actor, context, list(self.tokens), call_id, self.response.call["id"], tool, call.arguments
            )
            result = await self._run_held(held, drafted)
        self.trace.tool(started, result)
        self._node.metrics.tool(call.name, "failed" if result.error else "completed", time.time() - started)
        if result.error:
            self._emit(self.response.close_call(error=result.error))
            return f"Error: {result.error}"
        self._emit(self.response.close_call(output=result.output))
        return result.output

    async def _run_held(self, held: HeldCall, drafted: SpeculativeCall | None) -> ToolResult:
        """The result of the tool, while the context is held for it. `drafted`: the same call, begun by a draft."""
        held.begin()
        try:
            if drafted is not None:
                result = await drafted.take_over(held.hear)
            else:
                result = await self._node.tools.run(
                    self._actor.session_id, held.call_id, held.tool, held.arguments, held.hear
                )
        except asyncio.CancelledError:
            held.cancel()
            raise
        held.end(result)
        return result

    # The end

    def _finish(self, status: str, details: Event | None) -> None:
        self._actor.context.stop()
        self._drafted.end(self.tokens, self.trace)
        open_status = "completed" if status == "completed" else "incomplete"
        self._emit(self.response.close_open_parts(open_status, f"the response was {status}", self._last()))
        usage = self.usage.to_wire()
        self.trace.done(status)
        self._emit(self.response.done(status, details, usage))
        self._actor.turn_done(self, self.tokens[self._prompt_length :])

    def _emit(self, events: list[Event]) -> None:
        self._actor.emit_response(self.response, events)

    def _last(self) -> str | None:
        return self._actor.last_item_id()


def _failure(code: str) -> Event:
    kind = "invalid_request_error" if code == "context_length_exceeded" else "server_error"
    return {"type": "failed", "error": {"type": kind, "code": code}}
