"""`/v1/chat/completions` and `/v1/responses` on the host: canonical prompt in, the parts of one or several choices out.

The prompt is prefilled once: further choices are forks of the first one's context.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import Sequence
from contextlib import ExitStack, closing

import msgspec

from engine.client import ContextHandle, EngineError, EngineLost, Generation
from engine.messages import Finished, GenerateParams, Grammar
from realtime.call_filter import CallFilter
from realtime.choice import Choice
from realtime.completion_prompt import prompt_of
from realtime.errors import ProtocolError
from realtime.hermes import call_or_answer_schema
from realtime.messages import CancelCompletion, Completion, CompletionPart, CompletionUsage, encode
from realtime.node import Node
from realtime.opening import Opening, open_answer
from realtime.session_config import SessionConfig
from realtime.tasks import cancel_and_wait
from realtime.tool_calls import OPEN
from realtime.toolbox import Toolbox

log = logging.getLogger(__name__)


class Completions:
    """The calls that run now. A call ends with exactly one part that has the `usage` or an error."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._running: dict[str, asyncio.Task[None]] = {}

    def start(self, request: Completion) -> None:
        """Begins a call; a second one on the same connection id replaces nothing and is refused by web."""
        task = asyncio.create_task(self._run(request), name=f"completion {request.connection}")
        self._running[request.connection] = task
        task.add_done_callback(lambda _: self._running.pop(request.connection, None))

    def cancel(self, request: CancelCompletion) -> None:
        """The caller is gone: frees the contexts within a step."""
        task = self._running.get(request.connection)
        if task is not None:
            task.cancel()

    async def close(self) -> None:
        """Cancels everything that runs."""
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, request: Completion) -> None:
        call = _Call(self._node, request)
        try:
            part = CompletionPart(usage=await call.run())
        except asyncio.CancelledError:
            part = CompletionPart(error_code="cancelled", error_message="the call was cancelled")
        except EngineLost:
            part = CompletionPart(error_code="engine_unavailable", error_message="the engine is not available")
        except (EngineError, ProtocolError) as error:
            part = CompletionPart(error_code=error.code, error_message=str(error))
        except Exception:
            log.exception("completion failed")
            part = CompletionPart(error_code="internal_error", error_message="the server failed")
        call.send(part)


class _Call:
    """One request, run once."""

    def __init__(self, node: Node, request: Completion) -> None:
        self._node = node
        self._request = request
        self._choices: list[Choice] = []
        self._opening = Opening([])
        self._grammar: Grammar | None = None
        self._begun = asyncio.Event()

    def send(self, part: CompletionPart) -> None:
        request = self._request
        if part != CompletionPart(index=part.index):
            self._node.publisher.deliver(request.web, request.connection, encode(part))

    async def run(self) -> CompletionUsage:
        """Raises `EngineLost`, `EngineError`, and `ProtocolError` for tools that are not possible."""
        node = self._node
        self._open()
        prompt = self._opening.tokens
        if len(prompt) >= node.max_context:
            limit = node.max_context
            raise EngineError("context_length_exceeded", f"the prompt has {len(prompt)} tokens; the limit is {limit}")
        client = await node.link.client(node.settings.engine_wait_s)
        with ExitStack() as opened:
            context = opened.enter_context(closing(client.open("foreground")))
            context.append(prompt)
            finished = await self._run_choices(opened, context, len(prompt))
        return CompletionUsage(
            prompt_tokens=len(prompt),
            cached_tokens=finished[0].cached_tokens,
            completion_tokens=sum(choice.tokens for choice in self._choices),
            reasoning_tokens=sum(choice.reasoning_tokens for choice in self._choices),
        )

    def _open(self) -> None:
        """Finds what the model goes on from, and who reads what it says."""
        request, fmt = self._request, self._node.format
        config = SessionConfig.model_validate(
            {"model": self._node.model, "tools": request.tools, "tool_choice": request.tool_choice}
        )
        tools = Toolbox.of(config)
        prompt = prompt_of(fmt, config, request.items)
        if request.grammar is None:
            # A grammar leaves no room for reasoning.
            prompt += fmt.thought_open
        self._opening = open_answer(fmt, config, tools, prompt)
        self._grammar = self._opening.grammar or request.grammar
        if tools and self._grammar is request.grammar is not None:
            # A model that may call has to say so in bare JSON, like its answer.
            source = call_or_answer_schema(tools.specs(), request.grammar.source)
            self._grammar = Grammar("json_schema", source)
        forced = f"{OPEN}\n{self._opening.given}" if self._opening.grammar is not None else ""
        for index in range(request.choices):
            calls = CallFilter(tools.names, request.parallel_tool_calls, forced) if tools else None
            thinking = fmt.opens_thought(self._opening.tokens)
            self._choices.append(Choice(index, fmt, request.stop, thinking, calls))

    async def _run_choices(self, opened: ExitStack, context: ContextHandle, prompt_length: int) -> Sequence[Finished]:
        """The first choice runs in `context` itself; the others in forks of the prompt, made when its KV is there."""
        params = self._params()
        first, *others = self._choices
        tasks = [asyncio.create_task(self._run_choice(first, context, context.generate(params)))]
        try:
            if others:
                await self._begun.wait()
            for choice in others:
                fork = opened.enter_context(closing(context.fork("foreground")))
                fork.truncate(prompt_length)
                seed = choice_seed(params.sampling.seed, choice.index)
                sampling = msgspec.structs.replace(params.sampling, seed=seed)
                generation = fork.generate(msgspec.structs.replace(params, sampling=sampling))
                tasks.append(asyncio.create_task(self._run_choice(choice, fork, generation)))
            return await asyncio.gather(*tasks)
        finally:
            await cancel_and_wait(tasks)

    async def _run_choice(self, choice: Choice, context: ContextHandle, generation: Generation) -> Finished:
        try:
            async for batch in generation:
                self._begun.set()
                self.send(choice.feed(batch, generation.logprobs[choice.tokens :]))
                if choice.is_over:
                    context.cancel()
                    break
            async for _ in generation:
                pass  # What came before the engine heard of the stop.
        finally:
            self._begun.set()
        if generation.finished is None:
            raise EngineLost
        self._end(choice, generation.finished)
        return generation.finished

    def _end(self, choice: Choice, finished: Finished) -> None:
        if finished.reason == "cancelled" and not choice.is_over:
            raise EngineError("engine_unavailable", "the engine stopped")
        part = choice.finish("length" if finished.reason == "length" else "stop")
        if part.finish_reason == "stop" and self._is_broken(choice):
            raise EngineError("invalid_output", "the answer is not what was asked for")
        self.send(part)

    def _is_broken(self, choice: Choice) -> bool:
        """Whether an answer that ended by itself is not what a grammar should have made it."""
        demands_call = self._opening.grammar is not None
        return demands_call or (self._request.grammar is not None and not _is_json(choice.text))

    def _params(self) -> GenerateParams:
        request, limit = self._request, self._node.settings.max_output_tokens
        seed = request.seed if request.seed is not None else secrets.randbits(63)
        return GenerateParams(
            max_tokens=min(request.max_tokens or limit, limit),
            sampling=msgspec.structs.replace(request.sampling, seed=seed),
            stop_token_ids=self._node.format.stop_token_ids,
            grammar=self._grammar,
            top_logprobs=request.top_logprobs,
        )


def choice_seed(seed: int, index: int) -> int:
    """The seed of a choice; the first one's is the seed that was asked for."""
    return (seed + index * 0x9E3779B97F4A7C15) % 2**63


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
