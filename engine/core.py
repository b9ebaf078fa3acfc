"""The engine: commands in, one step at a time, items out.

`apply` changes contexts at once, so a cancel or an edit takes effect before the next step is planned; `step` plans,
computes, keeps and emits. A refused command changes nothing; a fault inside a step costs the work of that step its KV
and its generations, and nothing else.
"""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass

from engine import messages as m
from engine.admission import Admission, Overloaded, waits_for_first_token
from engine.context import Context
from engine.generation import Generation
from engine.interception.accounts import Accounts
from engine.interception.holds import Holds, Running
from engine.interception.ledger import Ledger
from engine.interception.policy import Call
from engine.model.grammar import GrammarError, PendingMatcher, TooManyGrammars
from engine.model.sampler import Sampled, SampledToken, TokenCounts, verify
from engine.scheduler import Discard, Plan, Scheduler, Work
from engine.served_model import ServedModel
from engine.speculation import Proposer
from engine.validation import Refused, check_params, check_tokens

_COMPILING_POLL_S = 0.002


@dataclass(slots=True)
class Counters:
    """Grow for the life of the process; see `messages.Stats`."""

    steps: int = 0
    step_seconds: float = 0.0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    prefix_hit_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    preemptions: int = 0
    recomputed_tokens: int = 0
    swapped_out_tokens: int = 0
    swapped_in_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Launch:
    """Work of one model that has been given to the device, and the generations that it samples for."""

    model: int
    work: list[Work]
    generations: list[Generation | None]
    sampled: Sampled | None
    started: float
    launched: float


class EngineCore:
    """All contexts of all models. Not thread-safe; owned by the step loop.

    `run_ahead`: a step of plain decodes is followed by the next one before its tokens are read, so that the host works
    while the device does.
    """

    def __init__(
        self,
        models: Sequence[ServedModel],
        scheduler: Scheduler,
        admission: Admission,
        *,
        speculate: bool = True,
        run_ahead: bool = False,
        clock: Callable[[], float] = time.time,
        log: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.models = list(models)
        self.counters = Counters()
        self._scheduler = scheduler
        self._admission = admission
        self._speculate = speculate
        self._run_ahead = run_ahead
        self._clock = clock
        self._log = log
        self._holds = {i: Holds(model.tiers, model.policy, clock) for i, model in enumerate(self.models)}
        now, step_time = clock(), scheduler.step_time
        self._accounts = {i: Accounts(holds, i, step_time, now) for i, holds in self._holds.items()}
        self._starved: dict[int, int] = {}
        self._contexts: dict[int, Context] = {}
        # Those with pending work or a grammar to wait for: idle contexts cost a step nothing.
        self._active: dict[int, Context] = {}
        self._compiling: dict[int, Context] = {}
        self._ahead: list[Launch] = []
        self._items: list[m.Item] = []
        self._arrivals = 0
        self._device_free_at = 0.0

    # Commands

    def apply(self, command: m.Command) -> None:
        """Obeys one command, or adds a `Failed` item and changes nothing."""
        try:
            self._obey(command)
        except Refused as refusal:
            self._refuse(command, refusal.code, str(refusal))
        except Overloaded as full:
            self._refuse(command, "engine_overloaded", str(full))
        except Exception:
            # A bug in one verb must not take every other context down with it.
            self._log("command failed:\n" + traceback.format_exc())
            self._items.append(m.Failed(command.context, 0, "invalid_value", "the engine could not obey"))
        self._track(command.context)

    def close_all(self) -> None:
        """Closes every context and forgets what has not been emitted: the connection they belonged to is gone."""
        for context in self._contexts.values():
            context.generation = None
            self._holds[context.model].end(context, returned=False)
            context.drop_kv()
        for contexts in (self._contexts, self._active, self._compiling):
            contexts.clear()
        self._items.clear()

    def _refuse(self, command: m.Command, code: str, message: str) -> None:
        generation = command.generation if isinstance(command, m.Generate | m.Resume) else 0
        # A fork that is refused is no fault of the context it was to be a copy of.
        context = command.child if isinstance(command, m.Fork) else command.context
        self._items.append(m.Failed(context, generation, code, message))

    def _obey(self, command: m.Command) -> None:
        match command:
            case m.Open():
                self._open(command)
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
            case m.Hold():
                self._hold(self._find(command.context), command)
            case m.Resume():
                self._resume(self._find(command.context), command)
            case m.Close():
                self._close(command.context)
            case m.SetPriority(priority=priority):
                self._find(command.context).priority = priority
            case m.ToolEvent():
                self._hear(command)

    def _find(self, context_id: int) -> Context:
        context = self._contexts.get(context_id)
        if context is None:
            raise Refused("invalid_value", f"there is no context {context_id}")
        return context

    def _track(self, context_id: int) -> None:
        context = self._contexts.get(context_id)
        if context is not None and (context.pending or context.is_restoring):
            self._active[context_id] = context
        else:
            self._active.pop(context_id, None)

    def _check_new(self, context_id: int) -> None:
        if context_id in self._contexts:
            raise Refused("invalid_value", f"context {context_id} exists")
        self._admission.check_open(len(self._contexts))

    def _open(self, command: m.Open) -> None:
        self._check_new(command.context)
        if not 0 <= command.model < len(self.models):
            raise Refused("invalid_value", f"there is no model {command.model}")
        pool = self.models[command.model].pool
        context = Context(command.context, pool, command.priority, model=command.model, payer=command.payer)
        self._contexts[command.context] = context

    def _check_append(self, context: Context, tokens: list[int]) -> None:
        if context.generation is not None:
            raise Refused("invalid_value", "the context is generating")
        model = self.models[context.model]
        check_tokens(tokens, model.runner.vocab_size)
        length = len(context.tokens) + len(tokens)
        if length > model.max_context:
            raise Refused("context_length_exceeded", f"{length} tokens; the limit is {model.max_context}")

    def _append(self, context: Context, tokens: Sequence[int]) -> None:
        if tokens:
            self._stamp_arrival(context)
            context.append(tokens)
            self._match_prefix(context)

    def _stamp_arrival(self, context: Context) -> None:
        """New work of a context that has none queues up behind all others; a held one keeps its place."""
        if not context.pending and not context.held:
            self._arrivals += 1
            context.arrival = self._arrivals

    def _match_prefix(self, context: Context) -> None:
        """Takes over KV that another context has computed for the same tokens."""
        gained = context.match_prefix()
        if not gained:
            return
        self.counters.prefix_hit_tokens += gained
        if context.generation is not None:
            context.generation.cached_tokens += gained
        now = self._clock()
        self._items.append(m.Prefilled(context.id, context.kv_length, 0, now, now))

    def _generate(self, context: Context, generation_id: int, params: m.GenerateParams, appended: list[int]) -> None:
        """Appends and starts generating, or is refused as a whole."""
        model = self.models[context.model]
        self._check_append(context, appended)
        check_params(params, model.runner.vocab_size)
        length = len(context.tokens) + len(appended)
        if not length:
            raise Refused("invalid_value", "the context is empty")
        room = model.max_context - length
        if room < 1:
            raise Refused("context_length_exceeded", f"no room to generate: {length} of {model.max_context} tokens")
        if context.priority == "foreground":
            others = [other for other in self._active.values() if other is not context]
            self._admission.check_generate(others, length - context.kept_tokens)
        generation = Generation(
            id=generation_id,
            params=params,
            max_tokens=min(params.max_tokens, room),
            stop_token_ids=frozenset(params.stop_token_ids),
            prompt_tokens=length,
            cached_tokens=0,
            received_at=self._clock(),
        )
        self._constrain(generation, model)
        self._append(context, appended)
        self._stamp_arrival(context)
        self._start(context, generation, model)

    def _constrain(self, generation: Generation, model: ServedModel) -> None:
        """Gives the generation its grammar, or has it compiled. Raises `Refused`."""
        params = generation.params
        if params.grammar is None:
            return
        if model.grammars is None:
            raise Refused("invalid_value", "this model has no tokenizer, so no grammar can be used")
        try:
            matcher = model.grammars.start(params.grammar, params.stop_token_ids)
        except GrammarError as error:
            raise Refused("invalid_value", str(error)) from error
        except TooManyGrammars as error:
            raise Refused("engine_overloaded", str(error)) from error
        generation.stop_token_ids = frozenset(model.grammars.stops(params.stop_token_ids))
        if isinstance(matcher, PendingMatcher):
            generation.compiling = matcher
        else:
            generation.matcher = matcher

    def _start(self, context: Context, generation: Generation, model: ServedModel) -> None:
        params, length = generation.params, len(context.tokens)
        generation.cached_tokens = context.kept_tokens
        if TokenCounts.needed(params.sampling):
            generation.counts = TokenCounts(model.runner.vocab_size, context.tokens)
        if self._speculate and (params.speculate or params.draft):
            generation.proposer = Proposer(context.tokens, params.draft)
        context.generation = generation
        context.wants_prefill = False
        # The logits after the last token are not kept, so a prompt that is all in KV computes that token again.
        context.shrink_kv(length - 1)
        if generation.compiling is not None:
            self._compiling[context.id] = context
        else:
            generation.propose(context.tokens)

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

    def _hold(self, context: Context, command: m.Hold) -> None:
        self._cancel(context)
        if not context.held:
            call = Call(command.tool, command.argument_class, command.expected_s, command.actual_s)
            self._holds[context.model].begin(context, call, command.call)
        context.held = True
        self._items.append(self._kv_moved(context, "device", context.kv_length, "preserve", command.reason))

    def _hear(self, event: m.ToolEvent) -> None:
        """A hint about a call."""
        context = self._contexts.get(event.context)
        outcome: m.ToolOutcome = "rejected"
        code = 404
        if context is not None:
            outcome, code = self._holds[context.model].hear(context.id, event)
        self._items.append(m.ToolAck(event.context, event.call, event.state, outcome, code))

    def _resume(self, context: Context, command: m.Resume) -> None:
        if not context.held:
            raise Refused("invalid_value", "the context is not held")
        if command.params is not None:
            self._generate(context, command.generation, command.params, command.tokens)
        else:
            self._check_append(context, command.tokens)
            self._append(context, command.tokens)
        self._release(context)

    def _release(self, context: Context) -> None:
        """Ends a hold because the result has come."""
        holds = self._holds[context.model]
        holds.end(context, returned=True)
        context.held = False
        context.absorb()
        if context.generation is not None:
            context.generation.cached_tokens = context.kept_tokens
            context.generation.lost_kv = context.kv_length < context.computed - 1
        if not holds.policy.keeps_arrival:
            self._arrivals += 1
            context.arrival = self._arrivals

    def _close(self, context_id: int) -> None:
        context = self._contexts.get(context_id)
        if context is None:
            return
        self._cancel(context)
        self._holds[context.model].end(context, returned=False)
        context.drop_kv()
        del self._contexts[context_id]

    # Steps

    @property
    def has_work(self) -> bool:
        """Whether anything is to be computed, now or later, or handed out."""
        return self.wait_seconds() < math.inf

    def wait_seconds(self) -> float:
        """Seconds until `step` has something to do; infinite when it takes a command."""
        if self._items or self._ahead or self._is_grammar_ready:
            return 0.0
        if any(holds.must_wait for holds in self._holds.values()):
            return min(holds.wait_seconds() for holds in self._holds.values())
        is_moving = any(holds.tiers.is_moving for holds in self._holds.values())
        limited = self._scheduler.wait_seconds(filter(self._can_go_on, self._active.values()), is_moving)
        waits = [_COMPILING_POLL_S] if self._compiling else []
        waits += [] if limited is None else [limited]
        waits += [holds.wait_seconds() for holds in self._holds.values()]
        return min(waits, default=math.inf)

    def _can_go_on(self, context: Context) -> bool:
        """Whether a step could do anything for it: one that only waits for KV on its way back waits for that."""
        return context.pending > 0 or self._holds[context.model].restorable(context) > 0

    def step(self) -> list[m.Item]:
        """Computes one step and returns all items since the last call, in order."""
        if self._compiling:
            self._take_grammars()
        launches, self._ahead = self._ahead, []
        launches = launches or self._launch(self._plan())
        self._account(launches)
        if self._run_ahead and launches:
            self._ahead = self._launch_ahead(launches)
        for launch in launches:
            self._collect(launch)
        if launches:
            self.counters.steps += 1
            self.counters.step_seconds += self._clock() - launches[0].started
            now = self._clock()
            for index, accounts in self._accounts.items():
                accounts.end_step(now, self._active_of(index))
        items, self._items = self._items, []
        return items

    def _account(self, launches: list[Launch]) -> None:
        now = launches[0].started if launches else self._clock()
        for index, accounts in self._accounts.items():
            work = [w for launch in launches if launch.model == index for w in launch.work]
            accounts.begin_step(now, self._active_of(index), work)

    def _active_of(self, model: int) -> list[Context]:
        return [context for context in self._active.values() if context.model == model]

    def ledger(self, model: int = 0) -> Ledger:
        """Where the memory of a model's pool went until now."""
        self._accounts[model].book(self._clock())
        return self._accounts[model].ledger

    @property
    def _is_grammar_ready(self) -> bool:
        """Whether `_take_grammars` has something to do."""
        generations = [context.generation for context in self._compiling.values()]
        return any(one is None or one.compiling is None or one.compiling.done for one in generations)

    def _take_grammars(self) -> None:
        for context in list(self._compiling.values()):
            generation = context.generation
            if generation is None or generation.compiling is None:
                del self._compiling[context.id]
            elif generation.compiling.done:
                del self._compiling[context.id]
                self._take_grammar(context, generation, generation.compiling)
                self._track(context.id)

    def _take_grammar(self, context: Context, generation: Generation, pending: PendingMatcher) -> None:
        generation.compiling = None
        try:
            generation.matcher = pending.result()
        except GrammarError as error:
            context.generation = None
            self._items.append(m.Failed(context.id, generation.id, "invalid_value", str(error)))
        else:
            generation.propose(context.tokens)

    def _plan(self) -> Plan:
        for context in list(self._active.values()):
            if context.pending > 1:
                self._match_prefix(context)
                self._track(context.id)
        for index, holds in self._holds.items():
            self._move_kv(index, holds)
        if any(holds.must_wait for holds in self._holds.values()):
            return Plan()
        plan = self._scheduler.plan(list(self._active.values()), self._idle, self._holds)
        self._starved = plan.starved
        for discard in plan.discards:
            self.counters.preemptions += discard.reason == "preempted"
            self._report_discard(discard)
        self.counters.preemptions += plan.moved
        return plan

    def _move_kv(self, index: int, holds: Holds) -> None:
        """Lets the policy act, and takes note of moves that are over."""
        if not holds.is_busy:
            return
        discards, moved = holds.before_step(self._running(index), self._starved.get(index, 0))
        for discard in discards:
            self._report_discard(discard)
        for one in moved:
            if one.to_host:
                self.counters.swapped_out_tokens += one.tokens
            else:
                self.counters.swapped_in_tokens += one.tokens
            if one.context.id in self._contexts:
                where: tuple[m.KvLocation, m.KvDecision] = ("host", "swap") if one.to_host else ("device", "restore")
                self._items.append(self._kv_moved(one.context, where[0], one.tokens, where[1], "policy"))
                self._track(one.context.id)

    def _running(self, index: int) -> Running:
        """What the policy has to know of the contexts of one model that run."""
        active = self._active_of(index)
        decodes = [context for context in active if context.is_decoding]
        context_tokens = sum(context.kv_length for context in decodes)
        seconds = self._scheduler.step_time.predict(index, len(decodes), context_tokens) if decodes else 0.0
        return Running(sum(context.kv_length for context in active), len(decodes), seconds)

    def _report_discard(self, discard: Discard) -> None:
        self._items.append(self._kv_moved(discard.context, "none", discard.tokens, "discard", discard.reason))
        # One that waits for its grammar has its prompt to compute again.
        self._track(discard.context.id)

    def _idle(self) -> Iterable[Context]:
        contexts = self._contexts.values()
        return [c for c in contexts if c.device_blocks and not c.held and c.id not in self._active]

    def _launch(self, plan: Plan) -> list[Launch]:
        now = self._clock()
        launches = []
        for index in range(len(self.models)):
            work = [w for w in plan.work if w.context.model == index]
            if work:
                for w in work:
                    self._note_first(w.context, now)
                launches.append(self._launch_one(index, work, None))
        return [launch for launch in launches if launch is not None]

    def _note_first(self, context: Context, now: float) -> None:
        """What is said of a generation's first step."""
        generation = context.generation
        if generation is None or generation.first_scheduled_at:
            return
        generation.first_scheduled_at = now
        if generation.lost_kv:
            self._holds[context.model].waited(now - generation.received_at)

    def _launch_one(self, index: int, work: list[Work], after: Sampled | None) -> Launch | None:
        started = self._clock()
        try:
            sampled = self.models[index].launch(work, after)
        except Exception:
            self._log("step failed:\n" + traceback.format_exc())
            self._give_up(work)
            return None
        return Launch(index, work, [w.context.generation for w in work], sampled, started, self._clock())

    def _launch_ahead(self, launches: list[Launch]) -> list[Launch]:
        """The same decodes one token on, if nothing else waits and each of them may go on."""
        (launch, *others) = launches
        if others or launch.sampled is None or len(self._active) > len(launch.work):
            return []
        if not all(map(_may_run_ahead, launch.work, launch.generations)):
            return []
        needed = sum(work.context.blocks_needed(work.count + 1) for work in launch.work)
        if needed > self.models[launch.model].pool.free_count:
            return []
        work = [Work(w.context, w.start + w.count, 1, True, True, w.context.reserve(w.count + 1)) for w in launch.work]
        ahead = self._launch_one(launch.model, work, launch.sampled)
        return [ahead] if ahead is not None else []

    def _collect(self, launch: Launch) -> None:
        """Waits for the device and keeps what it computed, for contexts that still want it."""
        try:
            sampled = launch.sampled.read() if launch.sampled is not None else []
            ended = self._clock()
            row = 0
            for work, generation in zip(launch.work, launch.generations, strict=True):
                rows = 1 + len(work.draft) if work.samples else 0
                context = work.context
                if context.generation is generation and context.kv_length == work.start:
                    self._keep(work, sampled[row : row + rows], launch.started, ended)
                    self._track(context.id)
                row += rows
        except Exception:
            self._log("step failed:\n" + traceback.format_exc())
            self._give_up(launch.work)
            return
        self._learn(launch, ended)

    def _learn(self, launch: Launch, ended: float) -> None:
        """Tells the scheduler how long the work took, from when the device was done with what came before."""
        seconds = launch.launched - launch.started
        if self._run_ahead:
            seconds = ended - max(launch.started, self._device_free_at)
            # Work that samples nothing is not waited for, so neither its time nor that of what follows is known.
            self._device_free_at = ended if launch.sampled is not None else math.inf
            if launch.sampled is None:
                return
        tokens = sum(work.tokens for work in launch.work)
        context_tokens = sum(work.context_tokens for work in launch.work)
        self._scheduler.step_time.learn(launch.model, tokens, context_tokens, seconds)

    def _keep(self, work: Work, sampled: list[SampledToken], started: float, ended: float) -> None:
        context = work.context
        self.counters.recomputed_tokens += context.advance(work.start + work.count)
        if work.is_decode:
            self.counters.decode_tokens += work.count
        else:
            self.counters.prefill_tokens += work.count
            self._items.append(m.Prefilled(context.id, context.kv_length, work.count, started, ended))
        if sampled:
            self._take(context, work.draft, sampled, ended)
        elif not context.pending:
            context.wants_prefill = False
        context.seal()

    def _take(self, context: Context, draft: Sequence[int], sampled: list[SampledToken], now: float) -> None:
        """Verifies the draft; keeps and emits what was right and the token after it; ends the generation if it ends."""
        generation = context.generation
        assert generation is not None
        if any(token.failed for token in sampled):
            self._fail(context)
            return
        accepted = verify([s.token for s in sampled], draft) if draft else 0
        emitted: list[SampledToken] = []
        reason: m.FinishReason | None = None
        for token in sampled[: accepted + 1]:
            if token.token in generation.stop_token_ids:
                reason = "stop"
            else:
                emitted.append(token)
                reason = generation.take(token.token)
            if reason is not None:
                break
        context.tokens += [s.token for s in emitted]
        context.advance(min(context.kv_length + accepted, len(context.tokens) - (reason is None)))
        generation.first_token_at = generation.first_token_at or now
        if emitted:
            logprobs = [s.logprobs for s in emitted if s.logprobs is not None]
            self._items.append(m.Tokens(context.id, generation.id, [s.token for s in emitted], logprobs))
        if draft:
            self._count_draft(context, generation, len(draft), accepted)
        if reason is not None:
            self._finish(context, reason)
        else:
            generation.propose(context.tokens)

    def _count_draft(self, context: Context, generation: Generation, drafted: int, accepted: int) -> None:
        generation.drafted_tokens += drafted
        generation.accepted_tokens += accepted
        self.counters.drafted_tokens += drafted
        self.counters.accepted_tokens += accepted
        self.counters.decode_tokens += accepted
        assert generation.proposer is not None
        generation.proposer.observe(len(context.tokens), drafted, accepted)

    def _finish(self, context: Context, reason: m.FinishReason) -> None:
        generation = context.generation
        assert generation is not None
        context.generation = None
        context.trim()
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
                drafted_tokens=generation.drafted_tokens,
                accepted_tokens=generation.accepted_tokens,
            )
        )

    def _give_up(self, work: Sequence[Work]) -> None:
        """After a fault nobody knows what reached the KV of this step, so it is all dropped."""
        for w in work:
            self._fail(w.context)
            self._track(w.context.id)

    def _fail(self, context: Context) -> None:
        context.wants_prefill = False
        dropped = context.drop_kv(spoiled=True)
        self._items.append(self._kv_moved(context, "none", dropped, "discard", "step failed"))
        if context.generation is not None:
            self._finish(context, "failed")

    def _kv_moved(
        self,
        context: Context,
        location: m.KvLocation,
        tokens: int,
        decision: m.KvDecision,
        reason: str,
    ) -> m.KvMoved:
        size = tokens * self.models[context.model].runner.bytes_per_token
        return m.KvMoved(context.id, location, tokens, size, decision, reason)

    # Inspection

    @property
    def contexts(self) -> list[Context]:
        """All that are open."""
        return list(self._contexts.values())

    @property
    def hold_count(self) -> int:
        """How many contexts a policy decides about."""
        return sum(holds.count for holds in self._holds.values())

    def stats(self) -> m.Stats:
        """The gauges and counters of this moment."""
        owned: dict[str, set[tuple[int, int]]] = {"running": set(), "held": set(), "idle": set()}
        for context in self._contexts.values():
            owned[context.state].update((context.model, block) for block in context.device_blocks)
        owned["held"] -= owned["running"]
        owned["idle"] -= owned["running"] | owned["held"]
        running = sum(1 for context in self._active.values() if context.is_decoding)
        counters = self.counters
        return m.Stats(
            at=self._clock(),
            blocks_free=sum(model.pool.free_count for model in self.models),
            blocks_cached=sum(model.pool.cached_count for model in self.models),
            blocks_running=len(owned["running"]),
            blocks_idle=len(owned["idle"]),
            blocks_held=len(owned["held"]),
            contexts=len(self._contexts),
            running=running,
            waiting=len(self._active) - running,
            steps=counters.steps,
            step_seconds=counters.step_seconds,
            prefill_tokens=counters.prefill_tokens,
            decode_tokens=counters.decode_tokens,
            prefix_hit_tokens=counters.prefix_hit_tokens,
            drafted_tokens=counters.drafted_tokens,
            accepted_tokens=counters.accepted_tokens,
            preemptions=counters.preemptions,
            recomputed_tokens=counters.recomputed_tokens,
            swapped_out_tokens=counters.swapped_out_tokens,
            swapped_in_tokens=counters.swapped_in_tokens,
            awaited=sum(map(waits_for_first_token, self._active.values())),
            blocks_host=sum(model.pool.host.count - model.pool.host.free_count for model in self.models),
            memory=self._memory(),
        )

    def _memory(self) -> dict[str, float]:
        """Token-seconds by cause, over all models."""
        memory: dict[str, float] = {}
        for model in self._accounts:
            for cause, amount in asdict(self.ledger(model)).items():
                memory[cause] = memory.get(cause, 0.0) + amount
        return memory

    def check_integrity(self) -> None:
        """Asserts that every block is free, cached for its text, or held by exactly the contexts that refer to it."""
        for index, model in enumerate(self.models):
            contexts = [context for context in self._contexts.values() if context.model == index]
            model.pool.check_integrity([*(c.device_blocks for c in contexts), *model.tiers.held_blocks()])
            model.pool.host.check_integrity([*(c.parked.slots for c in contexts), *model.tiers.held_slots()])
            self._holds[index].check_integrity(contexts)
        for context in self._contexts.values():
            context.check_integrity()
        assert self._active.keys() == {c.id for c in self._contexts.values() if c.pending or c.is_restoring}, (
            "active contexts differ"
        )


def _may_run_ahead(work: Work, generation: Generation | None) -> bool:
    """Whether the token after the next needs nothing that the host learns from the next one, which is still wanted."""
    if generation is None or work.context.generation is not generation or work.context.kv_length != work.start:
        return False
    if not work.samples or work.draft or generation.proposal:
        return False
    constrained = generation.matcher is not None or generation.counts is not None
    return not constrained and generation.output_tokens + 1 < generation.max_tokens
