"""/v1/responses: an answer to a request that brings its conversation, or names the stored response it goes on from."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from realtime.conversation import Item, Message
from realtime.ids import new_id
from realtime.messages import CompletionPart
from web.completion_call import ClientGone, CompletionCall, let_in, raise_error, read_body, start_call
from web.completion_stream import PING, RecordStream, begun
from web.errors import ApiError, engine_unavailable
from web.response_items import to_items, to_wire
from web.response_store import ResponseStore, StoredResponse
from web.responses_request import ResponsesRequest, parse_responses_request
from web.responses_stream import Event, ResponseEvents


async def create_response(request: Request) -> Response:
    """POST /v1/responses. Raises `ApiError` for everything that is known to be wrong before the answer begins."""
    received_at = time.time()
    web, owner = let_in(request)
    asked = parse_responses_request(await read_body(request, web.settings.body_limit))
    store = ResponseStore(web.redis, web.settings)
    earlier = await store.conversation(asked.previous_response_id, owner)
    items = to_items(asked.input, earlier)
    told: list[Item] = [Message(new_id("msg_"), "system", (asked.instructions,))] if asked.instructions else []
    call = await start_call(
        web,
        request,
        "resp_",
        asked.model,
        items=[*told, *earlier, *items],
        max_tokens=asked.max_output_tokens,
        sampling=asked.sampling,
        seed=asked.seed,
        received_at=received_at,
        stop=asked.stops,
        top_logprobs=asked.top_logprobs_wanted,
        grammar=asked.grammar,
        tools=[tool.model_dump(exclude_none=True) for tool in asked.tools or []],
        tool_choice=asked.choice,
        parallel_tool_calls=asked.parallel_tool_calls is not False,
    )
    answer = _Answer(call, asked, store, owner, items)
    try:
        if asked.stream:
            return RecordStream(call, answer.records(await begun(call.parts())))
        return await answer.whole()
    except BaseException as error:
        await call.end()
        if isinstance(error, ClientGone):
            return Response(status_code=499)
        raise


class _Answer:
    """One response on its way. It is stored before the client hears of its end, so that it can be gone on from at
    once."""

    def __init__(
        self, call: CompletionCall, asked: ResponsesRequest, store: ResponseStore, owner: str, items: list[Item]
    ) -> None:
        self._call = call
        self._asked = asked
        self._store = store
        self._owner = owner
        self._items = items
        self._events = ResponseEvents(asked.to_response(call.id, call.created, call.model))

    async def whole(self) -> Response:
        async for part in self._call.parts():
            if part is None:
                continue
            raise_error(part)
            self._events.feed(part)
            if part.usage is not None:
                self._events.end(part.usage)
                await self._keep()
                await self._call.end()
                return JSONResponse(self._events.response)
        raise engine_unavailable()

    async def records(self, parts: AsyncIterator[CompletionPart | None]) -> AsyncIterator[bytes]:
        for event in self._events.begin():
            yield _record(event)
        async for part in parts:
            if part is None:
                yield PING
                continue
            for event in await self._hear(part):
                yield _record(event)
            if part.usage is not None or part.error_code:
                return

    async def _hear(self, part: CompletionPart) -> list[Event]:
        if part.error_code:
            return self._events.fail(part.error_code, part.error_message)
        events = self._events.feed(part)
        if part.usage is None:
            return events
        events += self._events.end(part.usage)
        try:
            await self._keep()
        except ApiError as error:
            return [*events, *self._events.fail(error.code, error.message)]
        return [*events, self._events.last()]

    async def _keep(self) -> None:
        if self._asked.is_stored:
            previous = self._asked.previous_response_id
            await self._store.put(StoredResponse(self._owner, self._events.response, self._items, previous))


async def get_response(request: Request) -> Response:
    """GET /v1/responses/{response_id}."""
    if request.query_params.get("stream", "false") not in ("false", "0"):
        raise ApiError(400, "unsupported_parameter", "stream: a stored response is not streamed again", "stream")
    return JSONResponse((await _stored(request)).response)


async def delete_response(request: Request) -> Response:
    """DELETE /v1/responses/{response_id}."""
    web, owner = let_in(request)
    id = request.path_params["response_id"]
    await ResponseStore(web.redis, web.settings).delete(id, owner)
    return JSONResponse({"id": id, "object": "response.deleted", "deleted": True})


async def list_input_items(request: Request) -> Response:
    """GET /v1/responses/{response_id}/input_items: all at once, newest first unless `order=asc`."""
    items = [to_wire(item) for item in (await _stored(request)).items]
    if request.query_params.get("order", "desc") != "asc":
        items.reverse()
    ends = {"first_id": items[0]["id"], "last_id": items[-1]["id"]} if items else {"first_id": None, "last_id": None}
    return JSONResponse({"object": "list", "data": items, "has_more": False, **ends})


async def cancel_response(request: Request) -> Response:
    """POST /v1/responses/{response_id}/cancel: there is nothing to cancel, since none runs in the background."""
    await _stored(request)
    text = "only a background response can be cancelled; close the connection to stop one that runs"
    raise ApiError(400, "invalid_value", text, "response_id")


async def _stored(request: Request) -> StoredResponse:
    web, owner = let_in(request)
    return await ResponseStore(web.redis, web.settings).get(request.path_params["response_id"], owner)


def _record(event: Event) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), msgspec.json.encode(event))
