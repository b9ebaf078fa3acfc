"""`/v1/chat/completions` on the host: one context per call, canonical prompt in, text parts out."""

from __future__ import annotations

import asyncio
import logging
import secrets

from engine.client import EngineError, EngineLost
from engine.messages import GenerateParams, Sampling
from realtime.conversation import Message, Role
from realtime.messages import CancelCompletion, Completion, CompletionPart, encode
from realtime.node import Node
from realtime.prompt import PromptBuilder
from realtime.session_config import SessionConfig

log = logging.getLogger(__name__)


class Completions:
    """The calls that run now. A call ends with exactly one part that has a `finish_reason` or an error."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._running: dict[str, asyncio.Task[None]] = {}

    def start(self, request: Completion) -> None:
        """Begins a call; a second one on the same connection id replaces nothing and is refused by web."""
        task = asyncio.create_task(self._run(request), name=f"completion {request.connection}")
        self._running[request.connection] = task
        task.add_done_callback(lambda _: self._running.pop(request.connection, None))

    def cancel(self, request: CancelCompletion) -> None:
        """The caller is gone: frees the context within a step."""
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
        try:
            part = await self._generate(request)
        except asyncio.CancelledError:
            part = CompletionPart(error_code="cancelled", error_message="the call was cancelled")
        except EngineLost:
            part = CompletionPart(error_code="engine_unavailable", error_message="the engine is not available")
        except EngineError as error:
            part = CompletionPart(error_code=error.code, error_message=str(error))
        except Exception:
            log.exception("completion failed")
            part = CompletionPart(error_code="internal_error", error_message="the server failed")
        self._send(request, part)

    async def _generate(self, request: Completion) -> CompletionPart:
        node = self._node
        prompt = _prompt(node, request.messages)
        if len(prompt) >= node.max_context:
            limit = node.max_context
            raise EngineError("context_length_exceeded", f"the prompt has {len(prompt)} tokens; the limit is {limit}")
        client = await node.link.client(node.settings.engine_wait_s)
        context = client.open("foreground")
        try:
            context.append(prompt)
            generation = context.generate(self._params(request))
            detokenizer = node.format.detokenizer()
            async for batch in generation:
                self._send(request, CompletionPart(text=detokenizer.feed(batch)))
            tail = detokenizer.finish()
        finally:
            context.close()
        finished = generation.finished
        if finished is None:
            raise EngineLost
        return CompletionPart(
            text=tail,
            finish_reason="length" if finished.reason == "length" else "stop",
            prompt_tokens=finished.prompt_tokens,
            cached_tokens=finished.cached_tokens,
            completion_tokens=finished.output_tokens,
        )

    def _params(self, request: Completion) -> GenerateParams:
        limit = self._node.settings.max_output_tokens
        seed = request.seed if request.seed is not None else secrets.randbits(63)
        return GenerateParams(
            max_tokens=min(request.max_tokens or limit, limit),
            sampling=Sampling(temperature=request.temperature, top_p=request.top_p, seed=seed),
            stop_token_ids=self._node.format.stop_token_ids,
        )

    def _send(self, request: Completion, part: CompletionPart) -> None:
        if part.text or part.finish_reason or part.error_code:
            self._node.publisher.deliver(request.web, request.connection, encode(part))


def _prompt(node: Node, messages: list[dict[str, str]]) -> list[int]:
    """The canonical prompt of a list of `{role, content}`, opened for the answer."""
    items = [
        Message(str(index), _ROLES.get(message["role"], "user"), (message["content"],))
        for index, message in enumerate(messages)
    ]
    base = PromptBuilder(node.format).base(SessionConfig(model=node.model), items)
    return [*base, *node.format.assistant_open]


_ROLES: dict[str, Role] = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
