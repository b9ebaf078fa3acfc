"""One open realtime WebSocket: frames in to the session's node, deliveries out to the client.

Three tasks: the reader validates frames and queues them, the poster sends what is queued to the node in as few round
trips as possible, the sender writes everything that goes to the client. The first to end decides how the socket closes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import Any

import msgspec
import redis
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from realtime import inbox
from realtime.events import ProtocolError, new_id, parse_client_event, server_event
from realtime.messages import Attach, ClientEvent, Detach, InboxMessage
from realtime.registry import NodeInfo
from realtime.session_config import SessionConfig
from realtime.store import SessionRecord, load_session
from realtime.tasks import cancel_and_wait
from web.state import Web

log = logging.getLogger(__name__)

BINARY_FRAME, POLICY, INTERNAL_ERROR, TRY_AGAIN = 1003, 1008, 1011, 1013
MAX_UNPOSTED = 256
CLOSE_LIMIT_S = 2.0
DEFAULT_MODEL_NAMES = ("", "default")


@dataclass(frozen=True)
class Opening:
    """What the client asked for in the query. `last_event_id` -1 = no replay wanted."""

    session: str
    resume: bool
    model: str
    last_event_id: int


@dataclass(frozen=True)
class _Frame:
    event_id: str | None
    payload: bytes
    received_at: float
    number: int


class _CannotResume(Exception):
    """The session cannot go on here; `error` says why, `code` is the close code."""

    def __init__(self, error: ProtocolError, code: int) -> None:
        super().__init__(error.message)
        self.error = error
        self.code = code


class RealtimeConnection:
    def __init__(self, websocket: WebSocket, web: Web, owner: str) -> None:
        self._websocket = websocket
        self._web = web
        self._owner = owner
        self._id = new_id("conn_")
        self._session = ""
        self._node = ""
        self._model = ""
        self._attached = False
        self._attach_from = -1
        self._frames = 0
        self._channel = web.channel()
        # None wakes the poster without an event, to attach again.
        self._unposted: asyncio.Queue[_Frame | None] = asyncio.Queue(MAX_UNPOSTED)

    async def run(self, opening: Opening) -> None:
        """Serves the socket until it closes; the node is told when it is gone."""
        metrics = self._web.metrics
        started = time.monotonic()
        metrics.sockets.inc()
        metrics.sockets_active.inc()
        self._web.sockets.add(self)
        self._web.relay.open(self._id, self._channel)
        try:
            await self._open(opening)
            await self._close(await self._serve())
        except _CannotResume as refusal:
            await self.refuse(refusal.error, refusal.code)
        finally:
            self._web.relay.close(self._id)
            self._web.sockets.discard(self)
            metrics.sockets_active.dec()
            metrics.socket_seconds.observe(time.monotonic() - started)
            await self._detach()

    async def refuse(self, error: ProtocolError, code: int = POLICY) -> None:
        """One error event, then the close frame. Not for use while `run` serves."""
        self._web.metrics.errors.labels(error.code).inc()
        await self._websocket.send_text(msgspec.json.encode(error.to_event()).decode())
        await self._close(code)

    def nodes_changed(self, lost: set[str], returned: set[str]) -> None:
        """Called when nodes went or came: a node that started anew does not know this socket yet."""
        if self._node in lost and self._attached:
            self._attached = False
            self._error(ProtocolError("engine_unavailable", "the engine is gone for the moment", type="server_error"))
        elif self._session and returned and (not self._node or self._node in returned):
            self._attached = False
            if self._unposted.empty():
                self._unposted.put_nowait(None)

    # Opening

    async def _open(self, opening: Opening) -> None:
        record = await self._resumable(opening) if opening.resume else None
        node = await self._web.nodes.choose(record.node if record else "", self._wanted_model(opening, record))
        if node is None:
            node = await self._web.nodes.choose(record.node if record else "")
        self._session = opening.session
        self._model = record.model if record else node.model if node else opening.model
        self._attach_from = self._channel.last_seq = opening.last_event_id
        self._send(server_event("session.created", session=self._session_object(record)))
        if opening.model not in (*DEFAULT_MODEL_NAMES, self._model):
            message = f"the model {opening.model[:100]!r} is not served; this session uses {self._model!r}"
            self._error(ProtocolError("model_not_found", message, "model"))
        if node is not None:
            self._node = node.node
            self._unposted.put_nowait(None)

    def _wanted_model(self, opening: Opening, record: SessionRecord | None) -> str:
        wanted = record.model if record else opening.model
        return "" if wanted in DEFAULT_MODEL_NAMES else wanted

    async def _resumable(self, opening: Opening) -> SessionRecord:
        """The stored session, if it is this owner's. Raises `_CannotResume`."""
        try:
            async with asyncio.timeout(self._web.settings.redis_timeout_s):
                record = await load_session(self._web.redis, opening.session)
        except (redis.RedisError, OSError, TimeoutError):
            self._web.metrics.resumes.labels("unavailable").inc()
            error = ProtocolError("engine_unavailable", "sessions cannot be looked up right now", type="server_error")
            raise _CannotResume(error, TRY_AGAIN) from None
        # One answer for both, so that the ids of other people's sessions cannot be probed.
        if record is None or record.owner != self._owner:
            self._web.metrics.resumes.labels("expired").inc()
            raise _CannotResume(ProtocolError("session_expired", "there is no such session", "session_id"), POLICY)
        self._web.metrics.resumes.labels("resumed").inc()
        return record

    def _session_object(self, record: SessionRecord | None) -> dict[str, Any]:
        if record is None:
            config = SessionConfig(model=self._model)
        else:
            config = SessionConfig.model_validate_json(record.config)
        return config.to_wire() | {"id": self._session, "model": self._model}

    # Serving

    async def _serve(self) -> int | None:
        """Runs until one of the tasks ends; the close code, or None when the client has closed already."""
        tasks = [
            asyncio.create_task(self._read()),
            asyncio.create_task(self._post()),
            asyncio.create_task(self._write()),
            asyncio.create_task(self._wait_for_overflow()),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel_and_wait(tasks)
        for task in tasks:
            if not task.cancelled() and (error := task.exception()):
                log.error("a realtime connection failed", exc_info=error)
                return INTERNAL_ERROR
        return next(iter(done)).result()

    async def _read(self) -> int | None:
        """Validates frames in the order in which they come. Waits when too many could not be posted yet."""
        received = self._web.metrics.events.labels("received")
        while True:
            message = await self._websocket.receive()
            if message["type"] == "websocket.disconnect":
                self._web.metrics.closes.labels(str(message.get("code", 1005))).inc()
                return None
            received_at = time.time()
            text = message.get("text")
            if text is None:
                return BINARY_FRAME
            received.inc()
            try:
                frame = _frame(text, received_at, self._frames + 1)
            except ProtocolError as error:
                self._error(error)
            else:
                self._frames += 1
                await self._unposted.put(frame)

    async def _post(self) -> int | None:
        """Sends queued frames to the node, all that wait in one round trip."""
        while True:
            frames = [await self._unposted.get()]
            while not self._unposted.empty():
                frames.append(self._unposted.get_nowait())
            events = [frame for frame in frames if frame is not None]
            try:
                async with asyncio.timeout(self._web.settings.redis_timeout_s):
                    await self._post_to_node(events)
            except (redis.RedisError, OSError, TimeoutError):
                self._attached = False
                self._refuse_events(events)
            except _CannotResume as refusal:
                self._error(refusal.error)
                return refusal.code

    async def _post_to_node(self, events: list[_Frame]) -> None:
        node = await self._web.nodes.choose(self._node, self._model)
        if node is None:
            self._refuse_events(events)
            return
        messages: list[InboxMessage] = []
        if not self._attached or node.node != self._node:
            messages.append(await self._attach_to(node))
        posted_at = time.time()
        messages += [
            ClientEvent(
                self._session,
                self._id,
                msgspec.Raw(event.payload),
                event.received_at,
                posted_at,
                self._web.id,
                event.number,
            )
            for event in events
        ]
        if messages:
            await inbox.post_all(self._web.redis, node.node, messages)
            self._node, self._attached = node.node, True

    async def _attach_to(self, node: NodeInfo) -> Attach:
        """The message that makes a node send this session's events here, from the last one that the client got on.

        Raises `_CannotResume` when the session that this socket showed is no longer there.
        """
        if self._channel.last_seq >= 0:
            record = await load_session(self._web.redis, self._session)
            if record is None:
                raise _CannotResume(ProtocolError("session_expired", "the session was lost", "session_id"), POLICY)
            if self._channel.last_seq > record.seq:
                # Redis has come back from an older save: what the client knows did not happen, so it gets a snapshot.
                self._channel.last_seq = -1
            self._attach_from = self._channel.last_seq
        return Attach(self._session, self._id, self._web.id, self._owner, self._model, self._attach_from)

    async def _write(self) -> int | None:
        sent = self._web.metrics.events.labels("sent")
        while True:
            for event in await self._channel.take():
                try:
                    await self._websocket.send_text(event.decode())
                except WebSocketDisconnect:
                    return None
                sent.inc()

    async def _wait_for_overflow(self) -> int | None:
        await self._channel.overflowed.wait()
        log.warning("a client reads too slowly and was let go")
        return TRY_AGAIN

    # Towards the client

    def _send(self, event: dict[str, Any]) -> None:
        self._channel.push(msgspec.json.encode(event))

    def _error(self, error: ProtocolError) -> None:
        self._web.metrics.errors.labels(error.code).inc()
        self._send(error.to_event())

    def _refuse_events(self, events: list[_Frame]) -> None:
        for event in events:
            message = "no engine is available right now; try again in a moment"
            self._error(ProtocolError("engine_unavailable", message, event_id=event.event_id, type="server_error"))

    # Closing

    async def _close(self, code: int | None) -> None:
        if code is None or self._websocket.client_state is WebSocketState.DISCONNECTED:
            return
        self._web.metrics.closes.labels(str(code)).inc()
        try:
            async with asyncio.timeout(CLOSE_LIMIT_S):
                await self._websocket.close(code)
        except (TimeoutError, RuntimeError):
            log.info("a client did not take its close frame")

    async def _detach(self) -> None:
        if not self._attached:
            return
        try:
            async with asyncio.timeout(CLOSE_LIMIT_S):
                await inbox.post(self._web.redis, self._node, Detach(self._session, self._id))
        except (redis.RedisError, OSError, TimeoutError) as error:
            log.info("a detach could not be posted: %s", error)


def _frame(text: str, received_at: float, number: int) -> _Frame:
    """Raises `ProtocolError` for anything but a valid client event."""
    event = parse_client_event(text)
    payload = text.encode()
    try:
        # The text is passed on as it is, inside another JSON document, so it must be strict JSON to the last byte.
        msgspec.json.decode(payload)
    except (msgspec.DecodeError, RecursionError):
        raise ProtocolError("invalid_json", "not valid JSON", event_id=event.event_id) from None
    return _Frame(event.event_id, payload, received_at, number)
