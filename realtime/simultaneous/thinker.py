"""What happens before Send: the context follows the unsent text, with strategy `notes` the model thinks about it, and
with strategy `draft` it begins to answer.

Everything here runs at background priority, is void when the text it read changes, and never reaches the answer
unless `response.create` finds it still true.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from engine.client import ContextHandle, EngineError, EngineLost, Generation
from engine.messages import GenerateParams, Grammar, Prefilled
from realtime.conversation import Item, Message
from realtime.session_config import SessionConfig
from realtime.simultaneous import layouts
from realtime.simultaneous.actions import ACTION_GRAMMAR, NOTE_TOKEN_BUDGET, parse_action
from realtime.simultaneous.auto import UNDECIDED, Chosen, DraftHistory, Situation, choose
from realtime.simultaneous.drafts import Drafted, Drafts
from realtime.simultaneous.layouts import Entry
from realtime.simultaneous.segmenter import stable_segments
from realtime.turn_trace import Arrival, TurnTrace

if TYPE_CHECKING:
    from realtime.actor import Actor

log = logging.getLogger(__name__)


class Thinker:
    """Belongs to an actor, which calls `update` after every batch of messages and after every turn."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._fmt = actor.node.format
        self._tokenizer = actor.node.format.stable_tokenizer()
        self._drafts = Drafts(actor, self._prompt_if_sent, self.prefilled, self.update)
        self._choice = UNDECIDED
        self._draft_history = DraftHistory()
        self._entries: list[Entry] = []
        self._committed: tuple[str, list[Entry]] | None = None
        self._note: asyncio.Task[None] | None = None
        self._reading = ""
        self._settled = False
        self._settle_timer: asyncio.TimerHandle | None = None
        self._tail: tuple[int, int, list[int]] = (0, 0, [])
        self._latest: Arrival | None = None
        self._edit: Arrival | None = None
        self._asked_at = 0.0
        self._prefilled = 0
        self._spans: list[tuple[str, float, float]] = []

    # What the actor tells

    def edited(self, arrival: Arrival) -> None:
        """The unsent text changed; `update` follows."""
        self._latest = arrival
        self._settled = False
        if self._settle_timer is not None:
            self._settle_timer.cancel()
        self._settle_timer = asyncio.get_running_loop().call_later(self._actor.node.settings.settle_s, self._settle)
        self._drafts.edited()

    def configured(self) -> None:
        """The configuration changed: notes made under the old one are void."""
        self._drop_notes("configuration")
        if self._committed is not None:
            self._committed = (self._committed[0], [])

    def committed(self, item: Message) -> None:
        """The text was sent. Notes that still match it wait for `response.create`; a running one is stopped."""
        self._match(item.text)
        self._cancel_note("commit")
        self._committed = (item.id, self._entries)
        # The text is tokenised already, all but its end: at Send that is milliseconds saved.
        self._actor.prompt.know_text(item.id, self._tokenizer.update(item.text)[0])
        self._entries = []
        self._settled = False

    def hand_over(self, trace: TurnTrace) -> Drafted:
        """A turn begins and owns the context: what was done for it goes into its trace, what was drafted to it."""
        self._cancel_note("response")
        trace.prefilled_before_commit = self._prefilled
        trace.notes = len(self._committed[1]) if self._committed is not None else 0
        trace.spans += self._spans
        trace.strategy, self._choice = self.strategy, UNDECIDED
        self._prefilled, self._spans = 0, []
        return self._drafts.hand_over()

    @property
    def strategy(self) -> Chosen:
        """What is done with the unsent text of this turn."""
        strategy = self._actor.session.config.strategy
        return self._choice.strategy if strategy == "auto" else strategy

    def drafts_ended(self, started: int, used: int, wasted: int) -> None:
        """A turn is over that had so many drafts, with so many tokens of use and so many without."""
        if started:
            self._draft_history.drafted(used, wasted)
        else:
            self._draft_history.not_drafted()

    def turn_ended(self) -> None:
        """From now on history is canonical: no notes."""
        self._committed = None

    def engine_changed(self) -> None:
        """Notes stay true, only their KV is gone; `update` prefills again when an engine is there."""
        self._cancel_note("engine")
        self._drafts.cancel("engine")

    def stop(self) -> None:
        self._cancel_note("closed")
        self._drafts.stop()
        if self._settle_timer is not None:
            self._settle_timer.cancel()

    def prefilled(self, item: Prefilled) -> None:
        """A step computed some of this session's prompt."""
        span = ("prefill", item.started_at, item.ended_at)
        if self._actor.turn is not None:
            self._actor.turn.trace.spans.append(span)
            return
        self._prefilled += item.computed
        self._spans.append(span)
        del self._spans[:-_MAX_SPANS]
        self._report_prefill(item.kv_tokens)
        if self._edit is not None and item.started_at >= self._edit.handled_at:
            edit, self._edit = self._edit, None
            self._actor.journal.emit_extension(
                "midstream.trace",
                web_received_at=edit.received_at,
                web_posted_at=edit.posted_at,
                host_received_at=edit.handled_at,
                engine_asked_at=self._asked_at,
                engine_started_at=item.started_at,
                engine_ended_at=item.ended_at,
            )
        self._begin_draft()

    def _report_prefill(self, kv_tokens: int) -> None:
        actor, buffer = self._actor, self._actor.session.buffer
        if not actor.session.config.wants_event("midstream.prefill"):
            return
        read, start, ids = self._tail
        done = ids[: max(0, kv_tokens - start)]
        text = buffer.text[:read] + self._fmt.tokenizer.decode(done, skip_special_tokens=False)
        actor.journal.emit_extension(
            "midstream.prefill",
            revision=buffer.revision,
            prefilled_chars=min(buffer.units(text), buffer.length),
            tokens=kv_tokens,
        )

    # What the actor asks

    def answer_prompt(self, config: SessionConfig, items: list[Item]) -> list[int]:
        """The prompt of a response to these items: canonical, unless notes about the last one are to be used."""
        if self._committed is not None and config.strategy in ("notes", "auto") and items:
            item_id, entries = self._committed
            last = items[-1]
            if isinstance(last, Message) and last.id == item_id and any(entry.note_tokens for entry in entries):
                base = self._actor.prompt.base(config, items[:-1])
                return layouts.answer_prompt(self._fmt, base, [], entries, last.text[_length(entries) :])
        return [*self._actor.prompt.base(config, items), *self._fmt.assistant_open, *self._fmt.thought_open]

    def update(self) -> None:
        """Makes context and draft follow the unsent text, as far as the strategy goes."""
        actor = self._actor
        config = actor.session.config
        self._drafts.revise()
        text = actor.session.buffer.text
        if actor.turn is None and config.strategy == "auto":
            self._choose(config, text)
        if actor.turn is not None or self.strategy == "off":
            return
        self._match(text)
        if self._note is not None or (context := actor.context.now) is None:
            return
        try:
            segment = self._unread(config, text)
            if segment:
                self._start_note(config, segment)
            else:
                self._prefill(context, config, text)
                self._begin_draft()
        except EngineLost:
            pass
        except EngineError as error:
            log.warning("session %s: %s", actor.session_id, error)
            actor.context.discard()

    def _choose(self, config: SessionConfig, text: str) -> None:
        """A choice stands for as long as something is under way that was begun because of it."""
        if not text.strip() or self._drafts.is_open or self._note or self._entries or self._committed:
            return
        actor, client = self._actor, self._actor.node.link.current
        length = len(actor.prompt.base(config, actor.session.conversation)) + len(self._tokenizer.update(text)[0])
        awaited = client.stats.awaited if client is not None and client.stats is not None else 0
        situation = Situation(length < actor.node.max_context, awaited, len(stable_segments(text)), config.lossless)
        choice = choose(situation, self._draft_history)
        if choice != self._choice:
            self._choice = choice
            actor.journal.emit_extension(
                "midstream.strategy",
                revision=actor.session.buffer.revision,
                strategy=choice.strategy,
                reason=choice.reason,
            )

    # Drafts

    def _begin_draft(self) -> None:
        """When the context has read the text, which is not before it has been told of it."""
        actor = self._actor
        if actor.turn is None and self._committed is None and (context := actor.context.now) is not None:
            self._drafts.begin(context)

    def _prompt_if_sent(self) -> list[int] | None:
        """The prompt of an answer to what is typed or was just sent; None when there is neither."""
        actor = self._actor
        config, items, text = actor.session.config, list(actor.session.conversation), actor.session.buffer.text
        if self._committed is not None:
            return self.answer_prompt(config, items)
        if not text.strip():
            return None
        fmt, ids = self._fmt, self._tokenizer.update(text)[0]
        user = [*fmt.user_open, *ids, *fmt.user_close]
        return [*actor.prompt.base(config, items), *user, *fmt.assistant_open, *fmt.thought_open]

    # Prefill

    def _settle(self) -> None:
        # A draft has read it all already.
        self._settled = not self._drafts.is_open
        self.update()

    def _prefill(self, context: ContextHandle, config: SessionConfig, text: str) -> None:
        """While keys are struck only tokens that later typing cannot change; in a pause all of what Send would need."""
        desired = self._desired(config, text)[: self._actor.node.max_context - 1]
        context.priority = "background"
        if context.sync(desired) == len(desired):
            return
        if self._edit is None:
            self._edit, self._asked_at = self._latest, time.time()
        self._actor.context.record("typing")

    def _desired(self, config: SessionConfig, text: str) -> list[int]:
        """The tokens that the context should hold now."""
        if self._committed is not None and not text:
            # Sent but not yet asked about: the notes are not history until the answer is there.
            desired = self.answer_prompt(config, list(self._actor.session.conversation))
            self._tail = (0, len(desired), [])
            return desired
        base = self._actor.prompt.base(config, self._actor.session.conversation)
        read = _length(self._entries)
        prefix, waiting = layouts.open_turn(self._fmt, base, [], self._entries)
        ids, stable = self._tokenizer.update(waiting + text[read:])
        self._tail = (read - len(waiting), len(prefix), ids)
        if self._settled and text.strip():
            return layouts.answer_prompt(self._fmt, base, [], self._entries, text[read:])
        return prefix + ids[:stable]

    # Notes

    def _match(self, text: str) -> None:
        """Keeps the entries that the text still begins with, and stops a note that read something else."""
        position = 0
        for index, entry in enumerate(self._entries):
            if not text.startswith(entry.segments, position):
                self._discard(index, "edit")
                break
            position += len(entry.segments)
        if self._note is not None and not text.startswith(self._reading):
            self._cancel_note("edit")

    def _unread(self, config: SessionConfig, text: str) -> str:
        """Complete segments that no entry has read yet."""
        if self.strategy != "notes" or len(self._entries) >= self._actor.node.settings.max_notes:
            return ""
        stable = "".join(stable_segments(text))
        return stable[_length(self._entries) :]

    def _start_note(self, config: SessionConfig, segment: str) -> None:
        self._reading = "".join(entry.segments for entry in self._entries) + segment
        self._note = asyncio.create_task(self._think(config, segment), name=f"note {self._actor.session_id}")

    async def _think(self, config: SessionConfig, segment: str) -> None:
        """One step of simultaneous inference: a note about `segment`, or the decision to wait."""
        index, started = len(self._entries), time.time()
        try:
            tokens, text = await self._generate_note(config, segment, index)
        except (EngineLost, EngineError) as error:
            log.info("session %s: no note: %s", self._actor.session_id, error)
            self._actor.context.discard()
            tokens, text = [], ""
        action = parse_action(text)
        note = tuple(tokens) if action.kind == "inference" else None
        self._entries.append(Entry(segment, note))
        self._spans.append(("note", started, time.time()))
        self._event("done", index=index, action="wait" if note is None else "inference", text=action.note)
        self._note = None
        self._actor.context.record("note")
        self.update()

    async def _generate_note(self, config: SessionConfig, segment: str, index: int) -> tuple[list[int], str]:
        actor = self._actor
        context = await actor.context.wait()
        base = actor.prompt.base(config, actor.session.conversation)
        context.priority = "background"
        context.sync(layouts.inference_prompt(self._fmt, base, [], self._entries, segment))
        self._event("started", index=index, segment=segment)
        params = GenerateParams(
            NOTE_TOKEN_BUDGET,
            stop_token_ids=self._fmt.stop_token_ids,
            grammar=Grammar("regex", ACTION_GRAMMAR),
        )
        return await self._read_note(context.generate(params), index)

    async def _read_note(self, generation: Generation, index: int) -> tuple[list[int], str]:
        detokenizer = self._fmt.detokenizer()
        tokens: list[int] = []
        text = ""
        async for batch in generation:
            tokens += batch
            delta = detokenizer.feed(batch)
            text += delta
            self._event("delta", index=index, delta=delta)
        return tokens, text + detokenizer.finish()

    def _cancel_note(self, reason: str) -> None:
        note, self._note = self._note, None
        if note is None:
            return
        note.cancel()
        self._actor.context.stop()
        self._event("discarded", index=len(self._entries), reason=reason)

    def _drop_notes(self, reason: str) -> None:
        self._cancel_note(reason)
        if self._entries:
            self._discard(0, reason)

    def _discard(self, first: int, reason: str) -> None:
        for index in range(first, len(self._entries)):
            self._event("discarded", index=index, reason=reason)
        del self._entries[first:]

    def _event(self, step: str, **fields: object) -> None:
        revision = self._actor.session.buffer.revision
        self._actor.journal.emit_extension(f"midstream.inference.{step}", revision=revision, **fields)


def _length(entries: list[Entry]) -> int:
    """Characters that the entries have read."""
    return sum(len(entry.segments) for entry in entries)


_MAX_SPANS = 200
