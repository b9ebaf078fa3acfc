"""The frame level of /v1/realtime, with a real client, a real server and a real Redis."""

from __future__ import annotations

import asyncio
import json
import socket as sockets
from typing import Any

import pytest
import redis.asyncio
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import InvalidStatus

from realtime import registry
from realtime.messages import Attach, ClientEvent, Detach
from realtime.session_config import SessionConfig
from realtime.store import SessionRecord, save_session
from tests.web.conftest import LIMIT_S, Node, Running, Serve, Valkey, next_event
from web.auth import LOCAL_OWNER, owner_of


async def close_code(socket: ClientConnection) -> int | None:
    await asyncio.wait_for(socket.wait_closed(), LIMIT_S)
    return socket.close_code


async def store(client: redis.asyncio.Redis, session: str, owner: str, seq: int = 0) -> None:
    config = SessionConfig(model="tiny", instructions="Be brief.").model_dump_json()
    async with client.pipeline() as pipeline:
        save_session(pipeline, session, SessionRecord(owner, "node-1", "tiny", config, seq, 0, ""), 60)
        await pipeline.execute()


def append(text: str, **fields: Any) -> str:
    return json.dumps({"type": "input_text_buffer.append", "text": text, **fields})


# The handshake


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1"])
async def test_a_foreign_origin_is_refused_before_the_handshake(server: Running, origin: str) -> None:
    with pytest.raises(InvalidStatus) as refused:
        await server.socket(origin=origin)
    assert refused.value.response.status_code == 403


async def test_the_own_origin_and_configured_ones_are_let_in(serve: Serve, node: Node) -> None:
    async with serve(allowed_origins=["https://chat.example.org"]) as server:
        for origin in (server.url, "https://chat.example.org"):
            async with server.socket(origin=origin) as socket:
                assert (await next_event(socket))["type"] == "session.created"


async def test_a_missing_or_wrong_key_is_refused_before_the_handshake(serve: Serve, node: Node) -> None:
    async with serve(api_keys=["secret"]) as server:
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            with pytest.raises(InvalidStatus) as refused:
                await server.socket(additional_headers=headers)
            assert refused.value.response.status_code == 401
            assert json.loads(refused.value.response.body)["error"]["code"] == "invalid_api_key"


async def test_a_key_as_subprotocol_is_accepted_and_never_echoed(serve: Serve, node: Node) -> None:
    async with serve(api_keys=["secret"]) as server:
        protocols: Any = ["realtime", "openai-insecure-api-key.secret"]
        async with server.socket(subprotocols=protocols) as socket:
            assert socket.subprotocol == "realtime"
            await next_event(socket)
        (attach,) = await node.receive(Attach)
        assert attach.owner == owner_of("secret")


async def test_connections_over_the_limit_are_refused(serve: Serve, node: Node) -> None:
    async with serve(max_connections=1) as server, server.socket() as first:
        await next_event(first)
        with pytest.raises(InvalidStatus) as refused:
            await server.socket()
        assert refused.value.response.status_code == 503


async def test_the_beta_protocol_gets_one_clear_error(server: Running, node: Node) -> None:
    async with server.socket(additional_headers={"OpenAI-Beta": "realtime=v1"}) as socket:
        assert (await next_event(socket))["error"]["param"] == "OpenAI-Beta"
        assert await close_code(socket) == 1008


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("?session_id=../x", "session_id"),
        ("?session_id=sess_1&last_event_id=-1", "last_event_id"),
        ("?session_id=sess_1&last_event_id=abc", "last_event_id"),
        ("?last_event_id=3", "session_id"),
    ],
)
async def test_bad_parameters_get_an_error_and_close(server: Running, node: Node, query: str, param: str) -> None:
    async with server.socket(query) as socket:
        assert (await next_event(socket))["error"]["param"] == param
        assert await close_code(socket) == 1008


# A new session


async def test_a_new_session_is_announced_and_attached(server: Running, node: Node) -> None:
    async with server.socket("?model=tiny") as socket:
        created = await next_event(socket)
        assert created["type"] == "session.created"
        assert "seq" not in created
        session = created["session"]
        assert session["model"] == "tiny"
        assert session["midstream"]["strategy"] == "auto"
        (attach,) = await node.receive(Attach)
        assert (attach.session, attach.owner, attach.last_event_id) == (session["id"], LOCAL_OWNER, -1)
        assert attach.web == server.web.id


async def test_an_unknown_model_is_an_error_and_the_session_stays_usable(server: Running, node: Node) -> None:
    async with server.socket("?model=gpt-99") as socket:
        assert (await next_event(socket))["session"]["model"] == "tiny"
        assert (await next_event(socket))["error"]["code"] == "model_not_found"
        await socket.send(append("x"))
        assert len(await node.receive(ClientEvent)) == 1


async def test_default_is_a_name_for_whatever_model_is_served(server: Running, node: Node) -> None:
    async with server.socket("?model=default") as socket:
        await next_event(socket)
        await socket.send("{")
        assert (await next_event(socket))["error"]["code"] == "invalid_json"


async def test_events_reach_the_node_in_order_with_their_times(server: Running, node: Node) -> None:
    async with server.socket() as socket:
        await next_event(socket)
        for number in range(300):
            await socket.send(append(str(number)))
        events = await node.receive(ClientEvent, 300)
        assert [json.loads(bytes(event.event))["text"] for event in events] == [str(number) for number in range(300)]
        assert all(0 < event.received_at <= event.posted_at for event in events)


async def test_what_the_node_delivers_reaches_the_client_in_order(server: Running, node: Node) -> None:
    async with server.socket() as socket:
        await next_event(socket)
        (attach,) = await node.receive(Attach)
        await node.deliver(attach.web, attach.connection, *({"type": "x", "number": number} for number in range(50)))
        assert [(await next_event(socket))["number"] for _ in range(50)] == list(range(50))


async def test_a_batch_delivered_twice_arrives_once(server: Running, node: Node) -> None:
    async with server.socket() as socket:
        await next_event(socket)
        (attach,) = await node.receive(Attach)
        for _ in range(2):
            await node.deliver(attach.web, attach.connection, {"seq": 1}, {"seq": 2}, seq=1)
        await node.deliver(attach.web, attach.connection, {"seq": 3}, seq=3)
        assert [(await next_event(socket))["seq"] for _ in range(3)] == [1, 2, 3]


async def test_a_closed_socket_is_detached(server: Running, node: Node) -> None:
    async with server.socket() as socket:
        await next_event(socket)
        (attach,) = await node.receive(Attach)
    (detach,) = await node.receive(Detach)
    assert (detach.session, detach.connection) == (attach.session, attach.connection)


# Bad frames


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        ("{", "invalid_json"),
        ("[]", "invalid_json"),
        ('{"type": "response.create", "response": {"metadata": {"a": NaN}}}', "invalid_json"),
        ('{"type":"response.create","x":NaN,"x":1}', "invalid_json"),
        ('{"event_id": "e1"}', "missing_required_parameter"),
        ('{"type": "nope"}', "unknown_event"),
        ('{"type": "input_text_buffer.append"}', "missing_required_parameter"),
        ('{"type": "input_text_buffer.append", "text": 5}', "invalid_value"),
        ('{"type": "input_audio_buffer.append", "audio": ""}', "unsupported_modality"),
        ("[" * 100_000, "invalid_json"),
    ],
)
async def test_a_bad_frame_is_an_error_event_and_the_socket_stays(
    server: Running, node: Node, frame: str, code: str
) -> None:
    async with server.socket() as socket:
        await next_event(socket)
        await socket.send(frame)
        event = await next_event(socket)
        assert (event["type"], event["error"]["code"]) == ("error", code)
        await socket.send(append("still here"))
        assert len(await node.receive(ClientEvent)) == 1


async def test_the_clients_event_id_comes_back_in_an_error(server: Running, node: Node) -> None:
    async with server.socket() as socket:
        await next_event(socket)
        await socket.send('{"type": "nope", "event_id": "mine"}')
        assert (await next_event(socket))["error"]["event_id"] == "mine"


async def test_a_binary_frame_closes_1003(server: Running, node: Node) -> None:
    async with server.socket() as socket:
        await socket.send(b"\x00")
        assert await close_code(socket) == 1003


async def test_a_frame_over_the_limit_closes_1009(server: Running, node: Node) -> None:
    async with server.socket() as socket:
        await next_event(socket)
        await socket.send(append("x" * (200 * 1024)))
        assert len(await node.receive(ClientEvent)) == 1
        await socket.send(append("x" * (256 * 1024)))
        assert await close_code(socket) == 1009


# Resuming


async def test_the_owner_resumes_with_the_stored_configuration(
    server: Running, node: Node, redis_client: redis.asyncio.Redis
) -> None:
    await store(redis_client, "sess_1", LOCAL_OWNER, seq=9)
    async with server.socket("?session_id=sess_1&last_event_id=7") as socket:
        session = (await next_event(socket))["session"]
        assert (session["id"], session["instructions"]) == ("sess_1", "Be brief.")
        (attach,) = await node.receive(Attach)
        assert attach.last_event_id == 7
        await node.deliver(attach.web, attach.connection, {"seq": 7}, {"seq": 8}, seq=7)
        assert (await next_event(socket))["seq"] == 8


@pytest.mark.parametrize("session", ["sess_1", "sess_unknown"])
async def test_someone_elses_session_looks_like_one_that_does_not_exist(
    server: Running, node: Node, redis_client: redis.asyncio.Redis, session: str
) -> None:
    await store(redis_client, "sess_1", owner_of("another key"))
    async with server.socket(f"?session_id={session}") as socket:
        assert (await next_event(socket))["error"]["code"] == "session_expired"
        assert await close_code(socket) == 1008


# Nodes that come and go


async def test_without_a_node_events_are_refused_and_the_next_ones_work(
    server: Running, redis_client: redis.asyncio.Redis
) -> None:
    async with server.socket() as socket:
        await next_event(socket)
        await socket.send(append("x", event_id="e1"))
        error = (await next_event(socket))["error"]
        assert (error["code"], error["event_id"], error["type"]) == ("engine_unavailable", "e1", "server_error")
        node = Node(redis_client)
        await node.register()
        await socket.send(append("y"))
        messages = await node.next_messages()
        assert isinstance(messages[0], Attach)


async def test_a_node_that_went_and_came_back_is_attached_anew_from_the_last_event(
    server: Running, redis_client: redis.asyncio.Redis
) -> None:
    node = Node(redis_client)
    await node.register()
    async with server.socket() as socket:
        session = (await next_event(socket))["session"]["id"]
        (attach,) = await node.receive(Attach)
        await store(redis_client, session, LOCAL_OWNER, seq=4)
        await node.deliver(attach.web, attach.connection, {"seq": 4}, seq=4)
        await next_event(socket)
        await registry.remove(redis_client, "node-1")
        assert (await next_event(socket))["error"]["code"] == "engine_unavailable"
        await node.register()
        (again,) = await node.receive(Attach)
        assert (again.session, again.connection, again.last_event_id) == (session, attach.connection, 4)


async def test_a_host_that_started_anew_is_attached_without_waiting_for_the_client(server: Running, node: Node) -> None:
    async with server.socket() as socket:
        await next_event(socket)
        (attach,) = await node.receive(Attach)
        node.info.started_at += 1
        await node.register()
        (again,) = await node.receive(Attach)
        assert again.connection == attach.connection


async def test_while_redis_is_away_events_are_refused_and_then_work_again(own_valkey: Valkey, serve: Serve) -> None:
    async with serve(redis_url=own_valkey.url) as server:
        client = redis.asyncio.Redis.from_url(own_valkey.url)
        node = Node(client)
        await node.register()
        async with server.socket() as socket:
            await next_event(socket)
            await node.receive(Attach)
            await asyncio.to_thread(own_valkey.stop)
            await socket.send(append("x", event_id="e1"))
            refused: dict[str, Any] = {}
            while refused.get("event_id") != "e1":
                refused = (await next_event(socket))["error"]
                assert refused["code"] == "engine_unavailable"
            await asyncio.to_thread(own_valkey.start)
            await node.register()
            await socket.send(append("y"))
            messages = await node.receive(ClientEvent)
            assert json.loads(bytes(messages[0].event))["text"] == "y"
        await client.aclose()


# Slow clients and shutdown


async def test_a_client_that_does_not_read_is_let_go(serve: Serve, node: Node) -> None:
    async with serve(send_queue_events=50) as server:
        host, port = server.url.removeprefix("http://").split(":")
        with sockets.create_connection((host, int(port))) as raw:
            raw.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 4096)
            handshake = (
                f"GET /v1/realtime HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
            )
            raw.sendall(handshake.encode())
            (attach,) = await node.receive(Attach)
            for _ in range(200):
                await node.deliver(attach.web, attach.connection, *[{"padding": "x" * 2000}] * 20)
            (detach,) = await node.receive(Detach)
            assert detach.connection == attach.connection
            assert not server.web.sockets
            assert server.web.metrics.closes.labels("1013")._value.get() == 1


async def test_shutdown_closes_1012(serve: Serve, node: Node) -> None:
    async with serve() as server:
        socket = await server.socket()
        await next_event(socket)
        server.server.should_exit = True
        assert await close_code(socket) == 1012
        await socket.close()
