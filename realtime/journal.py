"""What one session tells the world and leaves in Redis: numbered events, the replayable log, records and items.

Writes are queued in the order they happen; the publisher carries them out in one `MULTI` per flush.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec
from redis.asyncio.client import Pipeline

from realtime import event_log, keys, store
from realtime.conversation import Item
from realtime.ids import server_event
from realtime.messages import Attach
from realtime.node import Node
from realtime.session import Session

RECENT_EVENTS = 512
Event = dict[str, Any]


class Journal:
    """`seq` numbers every event of the session; the last ones stay in memory for sockets that come back."""

    def __init__(self, node: Node, session: Session, owner: str, seq: int) -> None:
        self.seq = seq
        self._node = node
        self._session = session
        self._owner = owner
        self._connections: dict[str, str] = {}
        self._recent: deque[tuple[int, bytes]] = deque(maxlen=RECENT_EVENTS)
        self._record_queued = False

    # Sockets

    @property
    def has_sockets(self) -> bool:
        return bool(self._connections)

    @property
    def webs(self) -> set[str]:
        """The web processes that hold its sockets."""
        return set(self._connections.values())

    def attach(self, connection: str, web: str) -> None:
        self._connections[connection] = web

    def detach(self, connection: str) -> None:
        self._connections.pop(connection, None)

    def connections_of(self, webs: set[str]) -> list[str]:
        return [connection for connection, web in self._connections.items() if web in webs]

    def emit(self, event: Event) -> None:
        """To every socket of the session, numbered and logged."""
        self.seq += 1
        seq, payload = self.seq, msgspec.json.encode({**event, "seq": self.seq})
        self._recent.append((seq, payload))
        settings, session = self._node.settings, self._session.id
        self._write(
            lambda pipeline: event_log.append(
                pipeline, session, [(seq, payload)], settings.event_log_length, settings.event_log_ttl_s
            )
        )
        for connection, web in self._connections.items():
            self._node.publisher.deliver(web, connection, payload, seq)
        self.save_record()

    def emit_extension(self, event_type: str, **fields: Any) -> None:
        """An opt-in event: sent only where the session asked for it."""
        if self._session.config.wants_event(event_type):
            self.emit(server_event(event_type, **fields))

    def reply(self, connection: str, event: Event, web: str = "") -> None:
        """To one socket only: not numbered, not replayed. `web` is for a socket that is not attached."""
        web = self._connections.get(connection, web)
        if web:
            self._node.publisher.deliver(web, connection, msgspec.json.encode(event))

    async def missed(self, last_event_id: int) -> list[tuple[int, bytes]] | None:
        """Events after `last_event_id`, from memory or else from the log; None when they are gone.

        Raises `redis.RedisError`.
        """
        if last_event_id > self.seq:
            return None
        if last_event_id == self.seq:
            return []
        older: list[tuple[int, bytes]] = []
        if not self._recent or self._recent[0][0] > last_event_id + 1:
            logged = await event_log.read_after(self._node.redis, self._session.id, last_event_id)
            if not logged:
                return None
            older = list(enumerate(logged, last_event_id + 1))
        last = older[-1][0] if older else last_event_id
        return older + [(seq, event) for seq, event in self._recent if seq > last]

    def replay(self, message: Attach, events: list[tuple[int, bytes]]) -> None:
        """Sends logged events again, to the socket that missed them."""
        for seq, event in events:
            self._node.publisher.deliver(message.web, message.connection, event, seq)

    # Records

    def save_item(self, item: Item, order: bool) -> None:
        """`order`: the sequence of items changed too."""
        session, payload = self._session.id, msgspec.json.encode(item)
        self._write(lambda pipeline: store.save_item(pipeline, session, item.id, payload))
        if order:
            ids = [kept.id for kept in self._session.conversation]
            self._write(lambda pipeline: store.save_order(pipeline, session, ids))

    def delete_item(self, item_id: str) -> None:
        session = self._session.id
        self._write(lambda pipeline: store.delete_item(pipeline, session, item_id))

    def save_record(self) -> None:
        """One write at the next flush covers all changes until then."""
        if not self._record_queued:
            self._record_queued = True
            self._write(self._write_record)

    def mark_active(self, active: bool) -> None:
        """Keeps the set of sessions that would need a terminal event if this process died."""
        key, session = keys.node_active(self._node.settings.node_id), self._session.id
        self._write(lambda pipeline: pipeline.sadd(key, session) if active else pipeline.srem(key, session))
        self.save_record()

    def save_kv(self, location: str, tokens: int, decision: str, reason: str) -> None:
        """Where the session's KV is now; see `store.KvRecord`."""
        client = self._node.link.current
        if client is None:
            return
        size = tokens * client.ready.models[0].bytes_per_token
        node_id, epoch = self._node.settings.node_id, client.ready.epoch
        record = store.KvRecord(node_id, epoch, location, tokens, size, decision, reason, time.time())
        session, ttl = self._session.id, self._node.settings.session_retention_s
        self._write(lambda pipeline: store.save_kv(pipeline, session, record, ttl))

    def delete_kv(self) -> None:
        session = self._session.id
        self._write(lambda pipeline: store.delete_kv(pipeline, session))

    def _write(self, operation: Callable[[Pipeline], object]) -> None:
        self._node.publisher.write(operation)

    def _write_record(self, pipeline: Pipeline) -> None:
        self._record_queued = False
        record = store.SessionRecord(
            owner=self._owner,
            node=self._node.settings.node_id,
            model=self._node.model,
            config=self._session.config.model_dump_json(),
            seq=self.seq,
            revision=self._session.buffer.revision,
            active_response=self._session.active_response,
        )
        store.save_session(pipeline, self._session.id, record, self._node.settings.session_retention_s)
