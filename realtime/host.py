"""The session host: reads the node's inbox and gives every session its actor, the only writer of its state.

Run as `python -m realtime.host`; prints `READY` once sessions can be served.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from functools import partial
from typing import Any

import msgspec
import redis
import uvloop

from engine.model.loader import ModelError, model_name, prepare_model
from realtime import keys, store
from realtime.actor import Actor
from realtime.chat_format import ChatFormat, UnsupportedTemplate
from realtime.completions import Completions
from realtime.engine_link import EngineLink
from realtime.errors import ProtocolError
from realtime.inbox import Inbox
from realtime.messages import (
    Attach,
    CancelCompletion,
    ClientEvent,
    Completion,
    Detach,
    InboxMessage,
    ToolMessage,
)
from realtime.node import Node
from realtime.presence import Absences
from realtime.publisher import Publisher
from realtime.redis_connection import connect, patiently
from realtime.registry import HEARTBEAT_S, NodeInfo, heartbeat, remove
from realtime.settings import RealtimeSettings
from realtime.tasks import cancel_and_wait
from realtime.tool_dispatch import ToolDispatch
from realtime.turn_metrics import TurnMetrics

log = logging.getLogger(__name__)

DRAIN_S = 3.0


class Host:
    """Routes inbox messages to actors, restores them from Redis, and retires idle ones."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._inbox = Inbox(node.redis, node.settings.node_id)
        self._actors: dict[str, Actor] = {}
        self._completions = Completions(node)
        self._absences = Absences(node.redis)
        self._started_at = time.time()

    async def run(self) -> None:
        """Serves until cancelled. Raises whatever ends one of its tasks."""
        tasks = [
            asyncio.create_task(self.node.publisher.run(), name="publisher"),
            asyncio.create_task(self.node.link.run(), name="engine link"),
        ]
        try:
            await self._recover()
            tasks.append(asyncio.create_task(self._heartbeat(), name="heartbeat"))
            tasks.append(asyncio.create_task(self._read_inbox(), name="inbox"))
            ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                task.result()
        finally:
            await cancel_and_wait(tasks)

    async def close(self) -> None:
        """Ends every turn with its terminal event and gets it out."""
        await self._completions.close()
        for actor in list(self._actors.values()):
            await actor.close()
        with contextlib.suppress(TimeoutError):
            flushing = asyncio.create_task(self.node.publisher.run())
            await self.node.publisher.drain(DRAIN_S)
            flushing.cancel()
        with contextlib.suppress(redis.RedisError):
            await remove(self.node.redis, self.node.settings.node_id)

    def engine_changed(self) -> None:
        """An engine was lost or is back: contexts are gone, and sessions may prefill again."""
        for actor in self._actors.values():
            actor.engine_changed()

    async def _recover(self) -> None:
        """Responses that an earlier process of this node left running get their terminal event, and the KV that it
        held is gone."""
        await patiently(lambda: store.delete_kv_of_node(self.node.redis, self.node.settings.node_id))
        active = keys.node_active(self.node.settings.node_id)
        sessions: Any = await patiently(lambda: self.node.redis.smembers(active))
        for session in sessions:
            # Loading a session ends its lost response; one that has expired meanwhile has nobody to tell.
            if await patiently(partial(self._actor, session.decode())) is None:
                await patiently(partial(self.node.redis.srem, active, session))

    async def _read_inbox(self) -> None:
        while True:
            for entry_id, message in await patiently(self._inbox.read):
                try:
                    await patiently(partial(self._route, entry_id, message))
                except Exception:
                    # Read again after a restart, it would fail again.
                    log.exception("dropped a message of the inbox")
                    self.acknowledge([entry_id])
            await self.node.publisher.room()

    async def _route(self, entry_id: bytes, message: InboxMessage) -> None:
        if isinstance(message, Attach | Detach | ClientEvent):
            actor = await self._actor(message.session, message)
            if actor is not None:
                actor.post(entry_id, message)
                return
        elif isinstance(message, Completion):
            self._completions.start(message)
        elif isinstance(message, CancelCompletion):
            self._completions.cancel(message)
        elif isinstance(message, ToolMessage):
            self.node.tools.on_message(message)
        self.acknowledge([entry_id])

    def acknowledge(self, entry_ids: list[bytes]) -> None:
        """Joins the acknowledgement to the effects queued so far, in one MULTI."""
        self.node.publisher.write(lambda pipeline: self._inbox.acknowledge(pipeline, entry_ids))

    async def _actor(self, session: str, message: Attach | Detach | ClientEvent | None = None) -> Actor | None:
        """The session's actor: the live one, one restored from Redis, or a new one for a first Attach."""
        actor = self._actors.get(session)
        if actor is not None:
            return actor
        if isinstance(message, Attach) and not await self._has_room():
            self._refuse(message)
            return None
        actor = await Actor.load(self.node, session, self.acknowledge)
        if actor is None and isinstance(message, Attach):
            actor = Actor.new(self.node, session, message.owner, self.acknowledge)
        if actor is not None:
            self._actors[session] = actor
            actor.start()
        return actor

    async def _has_room(self) -> bool:
        """Makes room by retiring the session that has been unused longest."""
        if len(self._actors) < self.node.settings.max_sessions:
            return True
        idle = [(actor.idle_since, session) for session, actor in self._actors.items() if actor.idle_since is not None]
        if not idle:
            return False
        _, session = min(idle)
        await self._actors.pop(session).close()
        return True

    def _refuse(self, message: Attach) -> None:
        text = f"this node serves {self.node.settings.max_sessions} sessions already"
        error = ProtocolError("engine_overloaded", text, type="server_error")
        self.node.publisher.deliver(message.web, message.connection, msgspec.json.encode(error.to_event()))

    async def _heartbeat(self) -> None:
        """Tells the registry that this node lives, and retires sessions that nobody uses."""
        node = self.node
        while True:
            await self._let_go_of_dead_webs()
            await self._retire_idle()
            client = node.link.current
            stats = client.stats if client is not None else None
            info = NodeInfo(
                node=node.settings.node_id,
                model=node.model,
                epoch=client.ready.epoch if client is not None else "",
                engine="ready" if client is not None else "lost",
                max_context=client.ready.models[0].max_context if client is not None else 0,
                sessions=len(self._actors),
                at=time.time(),
                started_at=self._started_at,
                stats=_numbers(stats),
            )
            with contextlib.suppress(redis.RedisError):
                await heartbeat(node.redis, info, node.metrics.gauges(stats, len(self._actors)))
            await asyncio.sleep(HEARTBEAT_S)

    async def _let_go_of_dead_webs(self) -> None:
        """A web process that was killed did not say which sockets it had."""
        webs = {web for actor in self._actors.values() for web in actor.journal.webs}
        dead = await self._absences.dead(webs)
        for actor in self._actors.values():
            if dead & actor.journal.webs:
                actor.webs_died(dead)

    async def _retire_idle(self) -> None:
        oldest = time.monotonic() - self.node.settings.session_idle_s
        for session, actor in list(self._actors.items()):
            if actor.idle_since is not None and actor.idle_since < oldest:
                del self._actors[session]  # first: what comes from now on is for the next actor
                await actor.close()


def _numbers(stats: object) -> dict[str, float]:
    if stats is None:
        return {}
    fields = ((name, getattr(stats, name)) for name in getattr(stats, "__struct_fields__", ()))
    return {name: float(value) for name, value in fields if isinstance(value, int | float)}


async def serve(settings: RealtimeSettings) -> None:
    """Builds the node and runs the host until SIGTERM or SIGINT."""
    folder = prepare_model(settings.model, settings.model_cache.expanduser(), lambda stage, fraction: None)
    client = connect(settings.redis_url)
    publisher = Publisher(client)
    hosts: list[Host] = []
    link = EngineLink(settings.engine_socket, lambda: hosts[0].engine_changed())
    node = Node(
        settings=settings,
        model=model_name(settings.model),
        redis=client,
        publisher=publisher,
        link=link,
        format=ChatFormat.from_folder(folder),
        tools=ToolDispatch(client, publisher, settings),
        metrics=TurnMetrics(settings.node_id),
    )
    host = Host(node)
    hosts.append(host)
    running = asyncio.create_task(host.run(), name="host")
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, stop.set)
    print("READY", flush=True)
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        running.result()
    await cancel_and_wait({running})
    await host.close()
    await client.aclose()


def main() -> None:
    """Entry point of the process."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    try:
        uvloop.run(serve(RealtimeSettings()))
    except (ModelError, UnsupportedTemplate) as error:
        log.error("%s", error)
        raise SystemExit(1) from error


if __name__ == "__main__":
    main()
