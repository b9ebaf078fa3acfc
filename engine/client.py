"""The session host's side of the engine socket (asyncio).

A `ContextHandle` mirrors the tokens of its context. The engine may be a few tokens ahead, so everything that ends a
generation also says how long the context shall be (`truncate` to the mirror's length): after any verb the mirror is
what the engine will hold once it has obeyed. Tokens of a generation that is over on this side are ignored.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from engine import messages as m

_MAX_UNSENT = 64 << 20


class EngineLost(ConnectionError):
    """The connection to the engine is gone, and with it all contexts."""


class EngineError(Exception):
    """The engine refused a command. `code` as in `messages.Failed`."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Generation:
    """An async iterator of batches of new tokens; `finished` is set when it ends.

    `logprobs` grows by one entry for every token handed out, if they were asked for. Raises `EngineError` if the engine
    refused, `EngineLost` if the connection died.
    """

    def __init__(self, generation_id: int) -> None:
        self.id = generation_id
        self.finished: m.Finished | None = None
        self.logprobs: list[m.TokenLogprobs] = []
        self._batch: list[int] = []
        self._error: Exception | None = None
        self._changed = asyncio.Event()

    @property
    def error(self) -> Exception | None:
        """Why it failed; known before the last tokens are read."""
        return self._error

    def __aiter__(self) -> Generation:
        return self

    async def __anext__(self) -> list[int]:
        while True:
            if self._batch:
                batch, self._batch = self._batch, []
                return batch
            if self._error is not None:
                raise self._error
            if self.finished is not None:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()

    async def ended(self) -> None:
        """Returns when nothing more will come. Takes nothing from whoever iterates."""
        while self.finished is None and self._error is None:
            self._changed.clear()
            await self._changed.wait()

    def _deliver(self, item: m.Tokens) -> None:
        self._batch += item.tokens
        self.logprobs += item.logprobs
        self._changed.set()

    def _finish(self, finished: m.Finished) -> None:
        self.finished = finished
        self._changed.set()

    def _fail(self, error: Exception) -> None:
        if self.finished is None and self._error is None:
            self._error = error
            self._changed.set()


class ContextHandle:
    """One context of the engine; made by `EngineClient.open` and `fork`. Verbs send and return at once.

    All verbs raise `EngineLost` after the connection died and `EngineError` when the engine would refuse or has
    refused an earlier command of this context.

    `kv_tokens` and `host_tokens` have their KV on the device and in host memory: never fewer than there are, and exact
    after every token and every prefill of a context without gaps. The engine tells of moves in whole blocks, the last
    of which may be partly used, and not of blocks that an edit frees.
    """

    def __init__(self, client: EngineClient, context_id: int, priority: m.Priority, model: int) -> None:
        self.id = context_id
        self.model = model
        self.tokens: list[int] = []
        self.kv_tokens = 0
        self.host_tokens = 0
        self.held = False
        self.on_prefilled: Callable[[m.Prefilled], None] | None = None
        self.on_kv_moved: Callable[[m.KvMoved], None] | None = None
        self.on_tool_ack: Callable[[m.ToolAck], None] | None = None
        self._client = client
        self._priority: m.Priority = priority
        self._generation: Generation | None = None
        self._error: EngineError | None = None
        self._closed = False

    @property
    def generation(self) -> Generation | None:
        """The running generation."""
        return self._generation

    @property
    def priority(self) -> m.Priority:
        """Setting it takes effect with the next step."""
        return self._priority

    @priority.setter
    def priority(self, priority: m.Priority) -> None:
        if priority != self._priority:
            self._send(m.SetPriority(self.id, priority))
            self._priority = priority

    def append(self, tokens: Sequence[int]) -> None:
        """Adds tokens; prefill starts by itself. Not while generating."""
        self._check_append(tokens)
        if tokens:
            self._send(m.Append(self.id, list(tokens)))
            self.tokens.extend(tokens)

    def generate(self, params: m.GenerateParams) -> Generation:
        """Generates from all tokens. Generated tokens appear in `tokens` as they arrive."""
        if self.held:
            raise EngineError("invalid_value", "the context is held; resume it")
        self._check_append([])
        generation = self._client._new_generation(self)
        self._send(m.Generate(self.id, generation.id, params))
        self._generation = generation
        return generation

    def cancel(self) -> None:
        """Stops generation and prefill; keeps the tokens that have arrived here."""
        self._send(m.Cancel(self.id))
        if self._generation is not None:
            self.truncate(len(self.tokens))

    def truncate(self, length: int) -> None:
        """Forgets tokens from `length` on; cancels a running generation."""
        if not 0 <= length <= len(self.tokens):
            raise ValueError(f"cannot truncate {len(self.tokens)} tokens to {length}")
        self._send(m.Truncate(self.id, length))
        self._generation = None
        del self.tokens[length:]
        self.kv_tokens = min(self.kv_tokens, length)
        self.host_tokens = min(self.host_tokens, length)

    def keep(self, tokens: Sequence[int]) -> int:
        """Forgets all but the common prefix with `tokens`, cancelling a running generation; returns its length."""
        common = _common_prefix(self.tokens, tokens)
        if common < len(self.tokens) or self._generation is not None:
            self.truncate(common)
        return common

    def sync(self, tokens: Sequence[int]) -> int:
        """Makes the context hold exactly `tokens`, keeping the common prefix; returns that prefix's length."""
        common = self.keep(tokens)
        self.append(tokens[common:])
        return common

    def fork(self, priority: m.Priority) -> ContextHandle:
        """A new context with the tokens that this one has here; shares their KV."""
        self._check()
        child = self._client._new_context(priority, self.model)
        self._send(m.Fork(self.id, child.id, priority))
        child.tokens = list(self.tokens)
        child.kv_tokens = self.kv_tokens
        if self._generation is not None:
            child.truncate(len(child.tokens))
        return child

    def hold(
        self,
        reason: m.HoldReason,
        *,
        call: str = "",
        tool: str = "",
        argument_class: str = "",
        expected_s: float | None = None,
    ) -> None:
        """Stops generating and keeps a soft claim on the KV for about `expected_s` seconds; see `messages.Hold`."""
        if self._generation is not None:
            self.cancel()
        self._send(m.Hold(self.id, reason, expected_s, call, tool, argument_class))
        self.held = True

    def tool_event(self, call: str, state: m.ToolState, expected_s: float | None = None) -> None:
        """A hint about the call that it is held for; see `messages.ToolEvent`. `on_tool_ack` hears the answer."""
        self._send(m.ToolEvent(self.id, call, state, expected_s))

    def resume(self, tokens: Sequence[int], params: m.GenerateParams | None = None) -> Generation | None:
        """Ends a hold: appends `tokens` and, with `params`, generates in the original arrival order."""
        if not self.held:
            raise EngineError("invalid_value", "the context is not held")
        self._check_append(tokens)
        generation = self._client._new_generation(self) if params is not None else None
        self._send(m.Resume(self.id, list(tokens), generation.id if generation else 0, params))
        self.tokens.extend(tokens)
        self.held = False
        self._generation = generation
        return generation

    def close(self) -> None:
        """Releases everything, in any state; further calls do nothing."""
        if not self._closed:
            self._closed = True
            self._generation = None
            self._client._close_context(self)

    def _check(self) -> None:
        if self._error is not None:
            raise self._error
        if self._closed:
            raise EngineError("invalid_value", "the context is closed")
        self._client._check()

    def _check_append(self, tokens: Sequence[int]) -> None:
        self._check()
        if self._generation is not None:
            raise EngineError("invalid_value", "the context is generating")
        length, limit = len(self.tokens) + len(tokens), self._client.ready.models[self.model].max_context
        if length > limit:
            raise EngineError("context_length_exceeded", f"{length} tokens; the limit is {limit}")

    def _send(self, command: m.Command) -> None:
        self._check()
        self._client._send(command)

    def _take(self, item: m.Item) -> None:
        """Brings the mirror up to date with one item of the engine."""
        match item:
            case m.Tokens(generation=generation_id, tokens=tokens):
                if self._generation is not None and self._generation.id == generation_id:
                    self.tokens += tokens
                    self.kv_tokens, self.host_tokens = len(self.tokens) - 1, 0
            case m.Finished(generation=generation_id):
                if self._generation is not None and self._generation.id == generation_id:
                    self._generation = None
            case m.Prefilled(kv_tokens=kv_tokens):
                self.kv_tokens = min(kv_tokens, len(self.tokens))
                self.host_tokens = min(self.host_tokens, len(self.tokens) - self.kv_tokens)
                if self.on_prefilled is not None:
                    self.on_prefilled(item)
            case m.KvMoved():
                self._move_kv(item)
                if self.on_kv_moved is not None:
                    self.on_kv_moved(item)
            case m.ToolAck():
                if self.on_tool_ack is not None:
                    self.on_tool_ack(item)
            case m.Failed(generation=generation_id, code=code, message=message):
                self._refused(generation_id, EngineError(code, message))

    def _move_kv(self, item: m.KvMoved) -> None:
        match item.decision:
            case "preserve":
                self.kv_tokens = min(item.tokens, len(self.tokens))
            case "restore":
                self.kv_tokens = min(self.kv_tokens + item.tokens, len(self.tokens))
                self.host_tokens = self._without(self.host_tokens, item.tokens)
            case "swap":
                self.kv_tokens = self._without(self.kv_tokens, item.tokens)
                self.host_tokens = min(self.host_tokens + item.tokens, len(self.tokens))
            case "discard":
                elsewhere = max(item.tokens - self.kv_tokens, 0)
                self.kv_tokens = self._without(self.kv_tokens, item.tokens)
                self.host_tokens = self._without(self.host_tokens, elsewhere)

    def _without(self, tokens: int, gone: int) -> int:
        """What is left when the blocks of `gone` tokens have left those of `tokens`."""
        size = self._client.ready.models[self.model].block_size
        left = -(-tokens // size) - -(-gone // size)
        return max(min(tokens, left * size), 0)

    def _refused(self, generation_id: int, error: EngineError) -> None:
        """A refused generation leaves the mirror right; any other refusal means that it no longer is."""
        if self._generation is not None and generation_id in (0, self._generation.id):
            self._generation._fail(error)
            self._generation = None
        if not generation_id:
            self._error = self._error or error


class EngineClient:
    """A connection to one engine process. Make it with `connect`."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ready: m.Ready, silence_limit: float
    ) -> None:
        self.ready = ready
        self.stats: m.Stats | None = None
        self.on_step: Callable[[m.Step], None] | None = None
        self.on_stats: Callable[[m.Stats], None] | None = None
        self.lost = asyncio.Event()
        self._writer = writer
        self._silence_limit = silence_limit
        self._contexts: dict[int, ContextHandle] = {}
        self._generations: dict[int, Generation] = {}
        self._context_ids = itertools.count(1)
        self._generation_ids = itertools.count(1)
        self._unsent: list[m.Command] = []
        self._reading = asyncio.create_task(self._read(reader))

    @classmethod
    async def connect(cls, path: Path | str, timeout: float, silence_limit: float = 30.0) -> EngineClient:  # noqa: ASYNC109
        """Connects and waits for `Ready`, at most `timeout` seconds. Raises `EngineLost`.

        The engine sends its gauges twice a second; after `silence_limit` seconds without anything it counts as lost.
        """
        writer: asyncio.StreamWriter | None = None
        try:
            async with asyncio.timeout(timeout):
                reader, writer = await asyncio.open_unix_connection(str(path))
                ready = await _read_output(reader)
            if not isinstance(ready, m.Ready):
                raise EngineLost("what listens there is no engine")
        except (OSError, EOFError, TimeoutError, msgspec.MsgspecError) as error:
            if writer is not None:
                writer.close()
            raise EngineLost(f"no engine at {path}: {error or 'time-out'}") from error
        return cls(reader, writer, ready, silence_limit)

    def open(self, priority: m.Priority, *, model: int = 0, payer: int = 0) -> ContextHandle:
        """A new, empty context of `ready.models[model]`, whose background tokens count against `payer`.

        Raises `EngineLost`, and `EngineError` when there is no such model.
        """
        self._check()
        if not 0 <= model < len(self.ready.models):
            raise EngineError("invalid_value", f"there is no model {model}")
        handle = self._new_context(priority, model)
        self._send(m.Open(handle.id, priority, model, payer))
        return handle

    async def aclose(self) -> None:
        """Closes the connection, and with it all contexts."""
        self._reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reading
        self._lose("the connection was closed")
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    def _check(self) -> None:
        if self.lost.is_set():
            raise EngineLost("the engine is gone")

    def _new_context(self, priority: m.Priority, model: int) -> ContextHandle:
        handle = ContextHandle(self, next(self._context_ids), priority, model)
        self._contexts[handle.id] = handle
        return handle

    def _new_generation(self, handle: ContextHandle) -> Generation:
        handle._check()
        generation = Generation(next(self._generation_ids))
        self._generations[generation.id] = generation
        return generation

    def _close_context(self, handle: ContextHandle) -> None:
        self._contexts.pop(handle.id, None)
        if not self.lost.is_set():
            self._send(m.Close(handle.id))

    def _send(self, command: m.Command) -> None:
        """Commands of one turn of the event loop travel in one frame."""
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._flush)
        self._unsent.append(command)

    def _flush(self) -> None:
        commands, self._unsent = self._unsent, []
        if self.lost.is_set():
            return
        self._writer.write(m.encode_commands(commands))
        if self._writer.transport.get_write_buffer_size() > _MAX_UNSENT:
            self._lose("the engine does not read")

    async def _read(self, reader: asyncio.StreamReader) -> None:
        reason = "the engine closed the connection"
        try:
            while True:
                async with asyncio.timeout(self._silence_limit):
                    output = await _read_output(reader)
                self._take(output)
        except TimeoutError:
            reason = f"nothing from the engine for {self._silence_limit:g} s"
        except (OSError, EOFError, msgspec.MsgspecError) as error:
            reason = f"the connection to the engine broke: {error!r}"
        finally:
            self._lose(reason)

    def _take(self, output: m.Output) -> None:
        match output:
            case m.Step(items=items):
                for item in items:
                    self._take_item(item)
                if self.on_step is not None:
                    self.on_step(output)
            case m.Stats():
                self.stats = output
                if self.on_stats is not None:
                    self.on_stats(output)

    def _take_item(self, item: m.Item) -> None:
        handle = self._contexts.get(item.context)
        generation_id = getattr(item, "generation", 0)
        generation = self._generations.get(generation_id)
        if isinstance(item, m.Tokens) and generation and handle and handle.generation is generation:
            generation._deliver(item)
        if handle is not None:
            handle._take(item)
        if isinstance(item, m.Finished | m.Failed):
            self._generations.pop(generation_id, None)
        if isinstance(item, m.Finished) and generation is not None:
            if item.reason == "failed":
                generation._fail(EngineError("engine_unavailable", "a step failed; the context can be used again"))
            else:
                generation._finish(item)
        if isinstance(item, m.Failed) and generation is not None:
            generation._fail(EngineError(item.code, item.message))

    def _lose(self, reason: str) -> None:
        if self.lost.is_set():
            return
        self.lost.set()
        self._writer.close()
        error = EngineLost(reason)
        for generation in self._generations.values():
            generation._fail(error)
        self._generations.clear()
        self._contexts.clear()


async def _read_output(reader: asyncio.StreamReader) -> m.Output:
    size = int.from_bytes(await reader.readexactly(4), "big")
    return m.decode_output(await reader.readexactly(size))


def _common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    shorter = min(len(left), len(right))
    if list(left[:shorter]) == list(right[:shorter]):
        return shorter
    return next(i for i in range(shorter) if left[i] != right[i])
