"""The engine: commands in, one synchronous step at a time, items out.

`apply` changes contexts at once, so a cancel or an edit takes effect before the next step; `step` schedules, runs,
samples and emits. A refused command changes nothing; a fault inside a step costs the work of that step its KV and its
generations, and nothing else.
"""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Literal

from engine import messages as m
from engine.context import Context, Generation
from engine.kv.blocks import BlockPool
from engine.model.batch import Batch, Runner, SequenceInput
from engine.model.grammar import GrammarCompiler, GrammarError
from engine.model.sampler import SampleRow, sample
from engine.scheduler import Plan, Scheduler, Work


class Refused(Exception):
    """A command that cannot be obeyed; becomes a `Failed` item."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class EngineCore:
    """All contexts, their KV and the model. Not thread-safe; owned by the step loop."""

    def __init__(
        self,
        runner: Runner,
        *,
        step_tokens: int,
        background_step_tokens: int,
        max_contexts: int,
        grammars: GrammarCompiler | None = None,
        clock: Callable[[], float] = time.time,
        log: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.max_context = min(runner.max_positions, runner.kv_blocks * runner.block_size)
        self._runner = runner
        self._pool = BlockPool(runner.kv_blocks, runner.block_size)
        self._scheduler = Scheduler(self._pool, step_tokens, background_step_tokens)
        self._max_contexts = max_contexts
        self._grammars = grammars
        self._clock = clock
        self._log = log
        self._contexts: dict[int, Context] = {}
        self._items: list[m.Item] = []
        self._arrivals = 0
        self._steps = 0
        self._step_seconds = 0.0
        self._prefill_tokens = 0
        self._decode_tokens = 0

    # Commands

    def apply(self, command: m.Command) -> None:
        """Obeys one command, or adds a `Failed` item and changes nothing."""
        try:
            self._obey(command)
        except Refused as refusal:
            generation = command.generation if isinstance(command, m.Generate | m.Resume) else 0
            self._items.append(m.Failed(command.context, generation, refusal.code, str(refusal)))
        except Exception:
            # A bug in one verb must not take every other context down with it.
            self._log("command failed:\n" + traceback.format_exc())
            self._items.append(m.Failed(command.context, 0, "invalid_value", "the engine could not obey"))

    def close_all(self) -> None:
        """Closes every context and forgets what has not been emitted: the connection they belonged to is gone."""
        for context in self._contexts.values():
            context.drop_kv()
        self._contexts.clear()
        self._items.clear()

    def _obey(self, command: m.Command) -> None:
        match command:
            case m.Open(context=context_id, priority=priority):
                self._check_new(context_id)
                self._contexts[context_id] = Context(context_id, self._pool, priority)
            case m.Append(tokens=tokens):
                context = self._find(command.context)
                self._check_append(context, tokens)
                self._append(context, tokens)
            case m.Generate(generation=generation_id, params=params):
                context = self._find(command.context)
                if context.held:
                    raise Refused("invalid_value", "the context is held; resume it")
                self._generate(context, generation_id, params, [])
            case m.Cancel():
                self._cancel(self._contexts.get(command.context))
            case m.Truncate(length=length):
                self._truncate(self._find(command.context), length)
            case m.Fork(child=child_id, priority=priority):
                parent = self._find(command.context)
                self._check_new(child_id)
                self._contexts[child_id] = parent.fork(child_id, priority)
            case m.Hold(reason=reason):
                self._hold(self._find(command.context), reason)
            case m.Resume():
                self._resume(self._find(command.context), command)
            case m.Close():
                self._close(command.context)
            case m.SetPriority(priority=priority):
                self._find(command.context).priority = priority

    def _find(self, context_id: int) -> Context:
        context = self._contexts.get(context_id)
        if context is None:
            raise Refused("invalid_value", f"there is no context {context_id}")
        return context

    def _check_new(self, context_id: int) -> None:
        if context_id in self._contexts:
            raise Refused("invalid_value", f"context {context_id} exists")
        if len(self._contexts) >= self._max_contexts:
            raise Refused("engine_overloaded", f"all {self._max_contexts} contexts are in use")

    def _check_append(self, context: Context, tokens: Sequence[int]) -> None:
        if context.generation is not None:
            raise Refused("invalid_value", "the context is generating")
        if tokens and not (min(tokens) >= 0 and max(tokens) < self._runner.vocab_size):
            raise Refused("invalid_value", f"token ids must be from 0 to {self._runner.vocab_size - 1}")
        length = len(context.tokens) + len(tokens)
        if length > self.max_context:
            raise Refused("context_length_exceeded", f"{length} tokens; the limit is {self.max_context}")

    def _append(self, context: Context, tokens: Sequence[int]) -> None:
        if tokens:
            self._stamp_arrival(context)
            context.append(tokens)

    def _stamp_arrival(self, context: Context) -> None:
        """New work of a context that has none queues up behind all others; a held one keeps its place."""
        if not context.pending and not context.held:
            self._arrivals += 1
            context.arrival = self._arrivals

    def _generate(
        self, context: Context, generation_id: int, params: m.GenerateParams, appended: Sequence[int]
    ) -> None:
        """Appends and starts generating, or is refused as a whole."""
        self._check_append(context, appended)
        _check_params(params)
        length = len(context.tokens) + len(appended)
        if not length:
            raise Refused("invalid_value", "the context is empty")
        room = self.max_context - length
        if room < 1:
            raise Refused("context_length_exceeded", f"no room to generate: {length} of {self.max_context} tokens")
        matcher = None
        stops = params.stop_token_ids
        if params.grammar is not None:
            if self._grammars is None:
                raise Refused("invalid_value", "this model has no tokenizer, so no grammar can be used")
            try:
                matcher = self._grammars.matcher(params.grammar, stops)
            except GrammarError as error:
                raise Refused("invalid_value", str(error)) from error
            stops = self._grammars.stops(stops)
        self._append(context, appended)
        self._stamp_arrival(context)
        context.generation = Generation(
            id=generation_id,
            params=params,
            max_tokens=min(params.max_tokens, room),
            stop_token_ids=frozenset(stops),
            prompt_tokens=length,
            cached_tokens=context.kv_length,
            received_at=self._clock(),
            matcher=matcher,
        )
        context.wants_prefill = False
        # The logits after the last token are not kept, so a prompt that is all in KV computes that token again.
        context.shrink_kv(length - 1)

    def _cancel(self, context: Context | None) -> None:
        if context is None:
            return
        context.wants_prefill = False
        if context.generation is not None:
            self._finish(context, "cancelled")

    def _truncate(self, context: Context, length: int) -> None:
        if not 0 <= length <= len(context.tokens):
            raise Refused("invalid_value", f"cannot truncate {len(context.tokens)} tokens to {length}")
        if context.generation is not None:
            self._finish(context, "cancelled")
        context.truncate(length)

    def _hold(self, context: Context, reason: m.HoldReason) -> None:
        self._cancel(context)
        context.held = True
        self._items.append(self._kv_moved(context, "device", context.kv_length, "preserve", reason))

    def _resume(self, context: Context, command: m.Resume) -> None:
        if not context.held:
            raise Refused("invalid_value", "the context is not held")
        if command.params is not None:
            self._generate(context, command.generation, command.params, command.tokens)
        else:
            self._check_append(context, command.tokens)
            self._append(context, command.tokens)
        context.held = False

    def _close(self, context_id: int) -> None:
        context = self._contexts.get(context_id)
        if context is None:
            return
        self._cancel(context)
        context.drop_kv()
        del self._contexts[context_id]

    # Steps

    @property
    def has_work(self) -> bool:
        """Whether `step` has tokens to compute or items to hand out."""
        return bool(self._items) or any(context.pending for context in self._contexts.values())

    def step(self) -> list[m.Item]:
        """Computes one step and returns all items since the last call, in order."""
        plan = self._scheduler.plan(self._contexts.values())
        for discard in plan.discards:
            self._items.append(self._kv_moved(discard.context, "none", discard.tokens, "discard", discard.reason))
        if plan.work:
            self._compute(plan)
        items, self._items = self._items, []
        return items

    def _compute(self, plan: Plan) -> None:
        started = self._clock()
        for work in plan.work:
            generation = work.context.generation
            if generation is not None and not generation.first_scheduled_at:
                generation.first_scheduled_at = started
        try:
            sampled = iter(self._run(plan))
            ended = self._clock()
            for work in plan.work:
                self._commit(work, started, ended)
                if work.samples:
                    self._take(work.context, next(sampled), ended)
        except Exception:
            self._log("step failed:\n" + traceback.format_exc())
            self._give_up(plan)
        self._steps += 1
        self._step_seconds += self._clock() - started

    def _run(self, plan: Plan) -> list[int]:
        """Token ids for the work that samples, in order."""
        inputs = [
            SequenceInput(w.context.tokens[w.start : w.start + w.count], w.start, w.context.blocks, w.samples)
            for w in plan.work
        ]
        logits = self._runner.run(Batch(inputs, plan.copies))
        rows = []
        for work in plan.work:
            generation = work.context.generation
            if work.samples and generation is not None:
                rows.append(SampleRow(generation.params.sampling, work.start + work.count, generation.matcher))
        return sample(logits, rows) if rows else []

    def _commit(self, work: Work, started: float, ended: float) -> None:
        context = work.context
        context.kv_length = work.start + work.count
        if not context.pending:
            context.wants_prefill = False
        if work.is_decode:
            self._decode_tokens += work.count
        else:
            self._prefill_tokens += work.count
            self._items.append(m.Prefilled(context.id, context.kv_length, work.count, started, ended))

    def _take(self, context: Context, token: int, now: float) -> None:
        """A sampled token: keeps and emits it, or ends the generation, or both."""
        generation = context.generation
        assert generation is not None
        generation.first_token_at = generation.first_token_at or now
        if token in generation.stop_token_ids:
            self._finish(context, "stop")
            return
        context.tokens.append(token)
        generation.output_tokens += 1
        self._items.append(m.Tokens(context.id, generation.id, [token]))
        if generation.matcher is not None:
            generation.matcher.accept(token)
        if generation.matcher is not None and generation.matcher.is_finished:
            self._finish(context, "stop")
        elif generation.output_tokens >= generation.max_tokens:
            self._finish(context, "length")

    def _finish(self, context: Context, reason: m.FinishReason) -> None:
        generation = context.generation
        assert generation is not None
        context.generation = None
        self._items.append(
            m.Finished(
                context=context.id,
                generation=generation.id,
                reason=reason,
                prompt_tokens=generation.prompt_tokens,
                cached_tokens=generation.cached_tokens,
                output_tokens=generation.output_tokens,
                received_at=generation.received_at,
                first_scheduled_at=generation.first_scheduled_at,
                first_token_at=generation.first_token_at,
            )
        )

    def _give_up(self, plan: Plan) -> None:
        """After a fault nobody knows what reached the KV of this step, so it is all dropped."""
        for work in plan.work:
            context = work.context
            context.wants_prefill = False
            dropped = context.drop_kv()
            self._items.append(self._kv_moved(context, "none", dropped, "discard", "step failed"))
            if context.generation is not None:
                self._finish(context, "failed")

    def _kv_moved(
        self,
        context: Context,
        location: m.KvLocation,
        tokens: int,
        decision: Literal["preserve", "discard"],
        reason: str,
    ) -> m.KvMoved:
        size = tokens * self._runner.bytes_per_token
        return m.KvMoved(context.id, location, tokens, size, decision, reason)

    # Inspection

    def stats(self) -> m.Stats:
        """The gauges and counters of this moment."""
        owned: dict[str, set[int]] = {"running": set(), "held": set(), "idle": set()}
        for context in self._contexts.values():
            owned[context.state].update(context.blocks)
        owned["held"] -= owned["running"]
        owned["idle"] -= owned["running"] | owned["held"]
        pending = [context for context in self._contexts.values() if context.pending]
        running = sum(1 for context in pending if context.is_decoding)
        return m.Stats(
            at=self._clock(),
            blocks_free=self._pool.free_count,
            blocks_running=len(owned["running"]),
            blocks_idle=len(owned["idle"]),
            blocks_held=len(owned["held"]),
            contexts=len(self._contexts),
            running=running,
            waiting=len(pending) - running,
            steps=self._steps,
            step_seconds=self._step_seconds,
            prefill_tokens=self._prefill_tokens,
            decode_tokens=self._decode_tokens,
        )

    def check_integrity(self) -> None:
        """Asserts that every block is free or held by exactly the contexts that refer to it."""
        self._pool.check_integrity([context.blocks for context in self._contexts.values()])
        for context in self._contexts.values():
            assert context.kv_length <= len(context.tokens)
            assert len(context.blocks) * self._pool.block_size >= context.kv_length


def _check_params(params: m.GenerateParams) -> None:
    sampling = params.sampling
    numbers = (sampling.temperature, sampling.top_p, sampling.min_p)
    if params.max_tokens < 1:
        raise Refused("invalid_value", "max_tokens must be at least 1")
    if not all(math.isfinite(number) for number in numbers) or sampling.temperature < 0:
        raise Refused("invalid_value", "temperature must be a number from 0")
    if not 0 < sampling.top_p <= 1:
        raise Refused("invalid_value", "top_p must be above 0 and at most 1")
    if sampling.top_k < 0 or not 0 <= sampling.min_p <= 1:
        raise Refused("invalid_value", "top_k must be from 0, min_p from 0 to 1")
