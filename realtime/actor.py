"""The actor of one session: the only writer of its state, `seq` numbers, event log and transcript.

Messages come one at a time from the node's inbox; a running response is a task of this actor on the same event loop,
so nothing here needs a lock: between two awaits the actor is alone.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

import msgspec

from realtime import event_log, store
from realtime.conversation import Conversation, Item, Message, item_from_wire, to_wire
from realtime.errors import ProtocolError
from realtime.events import parse_client_event, server_event
from realtime.journal import Journal
from realtime.messages import Attach, ClientEvent, Detach
from realtime.node import Node
from realtime.prompt import PromptBuilder
from realtime.redis_connection import patiently
from realtime.response import Event, Response
from realtime.session import (
    CancelResponse,
    Committed,
    Configured,
    Deleted,
    Edited,
    Effect,
    Respond,
    Saved,
    Send,
    Session,
)
from realtime.session_config import SessionConfig
from realtime.session_context import SessionContext
from realtime.simultaneous.thinker import Thinker
from realtime.tasks import cancel_and_wait
from realtime.turn import Turn
from realtime.turn_log import add_turn
from realtime.turn_trace import Arrival, TurnTrace

log = logging.getLogger(__name__)

Acknowledge = Callable[[list[bytes]], None]
ActorMessage = Attach | Detach | ClientEvent


class Actor:
    """Owns the session, its sockets, its engine context, its thinking and its running turn."""

    def __init__(self, node: Node, session: Session, owner: str, seq: int, acknowledge: Acknowledge) -> None:
        self.node = node
        self.session = session
        self.session_id = session.id
        self.journal = Journal(node, session, owner, seq)
        self.prompt = PromptBuilder(node.format)
        self.thinker = Thinker(self)
        self.context = SessionContext(node, self.journal, self.thinker.prefilled)
        self.turn: Turn | None = None
        self.idle_since: float | None = time.monotonic()
        self._acknowledge = acknowledge
        self._queue: asyncio.Queue[tuple[bytes, ActorMessage]] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._anchor: str | None = None
        self._updated_sent = 0
        self._typing_started_at = 0.0
        self._numbers: dict[str, int] = {}
        self._sent: Arrival | None = None

    # Life

    @classmethod
    def new(cls, node: Node, session_id: str, owner: str, acknowledge: Acknowledge) -> Actor:
        session = Session(session_id, SessionConfig(model=node.model), Conversation())
        actor = cls(node, session, owner, 0, acknowledge)
        actor.journal.save_record()
        return actor

    @classmethod
    async def load(cls, node: Node, session_id: str, acknowledge: Acknowledge) -> Actor | None:
        """From Redis; None when it holds no such session. Raises `redis.RedisError`."""
        record = await store.load_session(node.redis, session_id)
        if record is None:
            return None
        items = await store.load_items(node.redis, session_id)
        config = SessionConfig.model_validate_json(record.config).model_copy(update={"model": node.model})
        conversation = Conversation.from_json(b"[" + b",".join(items) + b"]")
        actor = cls(node, Session(session_id, config, conversation), record.owner, record.seq, acknowledge)
        # The unsent text was lost, which is an edit: clients that build on it must hear of it.
        actor.session.buffer.revision = record.revision + 1
        if record.active_response:
            logged = await event_log.read_all(node.redis, session_id)
            actor._fail_lost_response(record.active_response, [msgspec.json.decode(event) for event in logged])
        return actor

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=f"actor {self.session_id}")

    async def close(self) -> None:
        """Ends the turn with its terminal event and lets go of the engine."""
        if self._task is not None:
            await cancel_and_wait({self._task})
        if self.turn is not None:
            await self.turn.aclose()
        self.thinker.stop()
        self.context.discard()

    def post(self, entry_id: bytes, message: ActorMessage) -> None:
        self.idle_since = None
        self._queue.put_nowait((entry_id, message))

    def _note_idleness(self) -> None:
        busy = self.journal.has_sockets or self.turn is not None or not self._queue.empty()
        self.idle_since = None if busy else time.monotonic()

    def webs_died(self, webs: set[str]) -> None:
        """Their sockets are gone without a word."""
        for connection in self.journal.connections_of(webs):
            self._detach(connection)
        self._note_idleness()
        self.thinker.update()

    def _detach(self, connection: str) -> None:
        self.journal.detach(connection)
        self._numbers.pop(connection, None)

    def engine_changed(self) -> None:
        """The engine was lost or is back: what it held is gone."""
        self.context.engine_changed()
        self.thinker.engine_changed()
        self.thinker.update()

    def _fail_lost_response(self, response_id: str, logged: list[Event]) -> None:
        """A response that an earlier process left running gets its terminal event; what it had said is kept."""
        response = Response.from_log(response_id, logged)
        self._anchor = self._last_id()
        self.emit_response(response, response.close_open_parts("incomplete", "the response failed", self._anchor))
        error = {"type": "server_error", "code": "engine_unavailable"}
        self.emit_response(response, response.done("failed", {"type": "failed", "error": error}, None))
        self.journal.mark_active(False)

    async def _run(self) -> None:
        while True:
            batch = [await self._queue.get()]
            while not self._queue.empty():
                batch.append(self._queue.get_nowait())
            for entry_id, message in batch:
                try:
                    await self._handle(message)
                except Exception:
                    log.exception("session %s: a message failed", self.session_id)
                self._acknowledge([entry_id])
            self._report_buffer()
            self._note_idleness()
            self.thinker.update()

    async def _handle(self, message: ActorMessage) -> None:
        if isinstance(message, Attach):
            await self._attach(message)
        elif isinstance(message, Detach):
            self._detach(message.connection)
        else:
            self._on_client_event(message)

    # Client events

    def _on_client_event(self, message: ClientEvent) -> None:
        if self._is_repeated(message):
            return
        arrival = Arrival(message.received_at, message.posted_at, time.time())
        try:
            event = parse_client_event(bytes(message.event).decode())
            for effect in self.session.handle(event):
                self._carry_out(effect, arrival)
        except ProtocolError as error:
            self.journal.reply(message.connection, error.to_event(), message.web)

    def _is_repeated(self, message: ClientEvent) -> bool:
        if not message.number:
            return False
        seen = self._numbers.get(message.connection, 0)
        self._numbers[message.connection] = max(seen, message.number)
        return message.number <= seen

    def _carry_out(self, effect: Effect, arrival: Arrival) -> None:
        match effect:
            case Send(event=event):
                self.journal.emit(event)
            case Edited():
                if not self._typing_started_at:
                    self._typing_started_at = arrival.received_at
                self.thinker.edited(arrival)
            case Configured():
                self.thinker.configured()
                self.journal.save_record()
            case Committed(item=item):
                self._sent = arrival
                self.thinker.committed(item)
            case Saved(item=item, order=order):
                self.journal.save_item(item, order)
            case Deleted(item_id=item_id):
                self.journal.delete_item(item_id)
            case Respond():
                self._respond(effect, arrival)
            case CancelResponse():
                if self.turn is not None:
                    self.turn.cancel()

    def _report_buffer(self) -> None:
        buffer = self.session.buffer
        if buffer.revision != self._updated_sent:
            self._updated_sent = buffer.revision
            self.journal.emit(server_event("input_text_buffer.updated", revision=buffer.revision, length=buffer.length))
            self.journal.save_record()

    # Responses

    def _respond(self, respond: Respond, arrival: Arrival) -> None:
        """Starts a turn. Raises `ProtocolError` context_length_exceeded when the prompt cannot fit."""
        prompt = self._fitting_prompt(respond)
        response = Response(respond.metadata, respond.config.max_output_tokens)
        sent, self._sent = self._sent or arrival, None
        trace = TurnTrace(
            self.session_id,
            self.node.settings.node_id,
            respond.config.strategy,
            sent,
            typing_started_at=self._typing_started_at,
        )
        drafted = self.thinker.hand_over(trace)
        self._typing_started_at = 0.0
        self._anchor = self._last_id()
        self.session.response_started(response.id)
        self.journal.mark_active(True)
        self.turn = Turn(self, response, respond.config, prompt, trace, drafted)
        self.turn.start()

    def _fitting_prompt(self, respond: Respond) -> list[int]:
        """The answer prompt; with `truncation` auto the oldest turns give way, half of the context at once, so that
        the next turns keep their KV."""
        config, items = respond.config, list(self.session.conversation)
        limit = self.node.max_context - 1
        prompt = self.thinker.answer_prompt(config, items)
        if len(prompt) <= limit:
            return prompt
        dropped = 0
        if config.truncation != "disabled":
            while len(prompt) > limit // 2 and (following := _next_user_item(items, dropped + 1)) is not None:
                dropped = following
                prompt = self.thinker.answer_prompt(config, items[dropped:])
        if len(prompt) > limit:
            message = f"the prompt has {len(prompt)} tokens; the context takes {limit}"
            raise ProtocolError("context_length_exceeded", message, None, respond.event_id)
        self.journal.emit_extension("midstream.truncated", items=dropped)
        return prompt

    def emit_response(self, response: Response, events: list[Event]) -> None:
        """For the turn: sends its events and keeps its finished items in the conversation."""
        for event in events:
            if event["type"] == "response.output_item.done":
                self._keep(item_from_wire(event["item"]))
            self.journal.emit(event)

    def last_item_id(self) -> str | None:
        """The item after which the running response's next item goes."""
        return self._anchor

    def turn_done(self, turn: Turn, generated: list[int]) -> None:
        """The turn's last word: `generated` is what followed its prompt."""
        if not turn.reasoned:
            fmt = self.node.format
            run = [*fmt.assistant_open, *generated, *fmt.assistant_close]
            self.prompt.remember([item["id"] for item in turn.response.items], run)
        record = turn.trace.record(turn.response.id, turn.usage)
        self.node.metrics.turn(record)
        self.node.publisher.write(lambda pipeline: add_turn(pipeline, record))
        self.journal.emit_extension("midstream.turn", **turn.trace.turn_event(turn.response.id, turn.usage))
        self.journal.emit_extension("midstream.trace", **turn.trace.trace_event(turn.response.id, turn.usage))
        self.turn = None
        self._note_idleness()
        self.journal.mark_active(False)
        self.thinker.turn_ended()
        for effect in self.session.response_ended():
            self._start_queued(effect)
        self.thinker.update()

    def _start_queued(self, effect: Effect) -> None:
        now = time.time()
        try:
            self._carry_out(effect, Arrival(now, now, now))
        except ProtocolError as error:
            self.journal.emit(error.to_event())

    def _keep(self, item: Item) -> None:
        if self._anchor is not None and self._anchor not in self.session.conversation:
            self._anchor = None  # deleted meanwhile
        self.session.conversation.add(item, self._anchor)
        self._anchor = item.id
        self.journal.save_item(item, order=True)

    def _last_id(self) -> str | None:
        last = None
        for item in self.session.conversation:
            last = item.id
        return last

    # Sockets and events

    async def _attach(self, message: Attach) -> None:
        wanted = message.last_event_id
        missed = await patiently(lambda: self.journal.missed(wanted)) if wanted >= 0 else []
        self.journal.attach(message.connection, message.web)
        if self.journal.seq or wanted >= 0:
            snapshot = {} if missed is not None and wanted >= 0 else {"snapshot": self._snapshot()}
            resumed = server_event("midstream.session.resumed", from_event_id=wanted, **snapshot)
            self.journal.reply(message.connection, {**resumed, "last_event_id": self.journal.seq})
        self.journal.replay(message, missed or [])

    def _snapshot(self) -> Event:
        running = None
        if self.turn is not None:
            response = self.turn.response
            running = {"id": response.id, "item_id": response.message_id, "text": response.text}
        items = [to_wire(item) for item in self.session.conversation]
        return {"items": items, "response": running, "revision": self.session.buffer.revision}


def _next_user_item(items: list[Item], start: int) -> int | None:
    """Index of the next user message from `start` on: a conversation is cut only there."""
    for index in range(start, len(items)):
        item = items[index]
        if isinstance(item, Message) and item.role == "user":
            return index
    return None
