"""`/v1/chat/completions` on the host: canonical prompt in, the parts of one or several choices out.

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
from engine.messages import Finished, GenerateParams
from realtime.choice import Choice
from realtime.conversation import Message, Role
from realtime.messages import CancelCompletion, Completion, CompletionPart, CompletionUsage, encode
from realtime.node import Node
from realtime.prompt import PromptBuilder
from realtime.session_config import SessionConfig
from realtime.tasks import cancel_and_wait

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
        except EngineError as error:
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
        opened = bool(node.format.thought_open) and request.grammar is None
        self._choices = [Choice(index, node.format, request.stop, opened) for index in range(request.choices)]
        self._begun = asyncio.Event()

    def send(self, part: CompletionPart) -> None:
        request = self._request
        if part.text or part.reasoning or part.logprobs or part.finish_reason or part.usage or part.error_code:
            self._node.publisher.deliver(request.web, request.connection, encode(part))

    async def run(self) -> CompletionUsage:
        """Raises `EngineLost` and `EngineError`."""
        node = self._node
        prompt = _prompt(node, self._request)
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
                if choice.stopped:
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
        if finished.reason == "cancelled" and not choice.stopped:
            raise EngineError("engine_unavailable", "the engine stopped")
        part = choice.finish("length" if finished.reason == "length" else "stop")
        if self._request.grammar is not None and part.finish_reason == "stop" and not _is_json(choice.text):
            raise EngineError("invalid_output", "the answer is not what response_format asks for")
        self.send(part)

    def _params(self) -> GenerateParams:
        request, limit = self._request, self._node.settings.max_output_tokens
        seed = request.seed if request.seed is not None else secrets.randbits(63)
        return GenerateParams(
            max_tokens=min(request.max_tokens or limit, limit),
            sampling=msgspec.structs.replace(request.sampling, seed=seed),
            stop_token_ids=self._node.format.stop_token_ids,
            grammar=request.grammar,
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


def _prompt(node: Node, request: Completion) -> list[int]:
    """The canonical prompt of its messages, opened for the answer."""
    items = [
        Message(str(index), _ROLES.get(message["role"], "user"), (message["content"],))
        for index, message in enumerate(request.messages)
    ]
    base = PromptBuilder(node.format).base(SessionConfig(model=node.model), items)
    # A grammar leaves no room for reasoning.
    thought_open = node.format.thought_open if request.grammar is None else []
    return [*base, *node.format.assistant_open, *thought_open]


_ROLES: dict[str, Role] = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
