"""GET /docs/schema.json and /docs/asyncapi.json: the events of `/v1/realtime`, generated from the models that check
them."""

from __future__ import annotations

import functools
from typing import Any

from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from realtime.events import CLIENT_EVENTS
from realtime.extension_events import EVENTS

_DEFINITIONS = "#/$defs/{model}"
_ASYNCAPI_DEFINITIONS = "#/components/schemas/{model}"


@functools.cache
def json_schema() -> dict[str, Any]:
    """JSON Schema 2020-12: `$defs`, and by event type what a client may send and what the extension sends."""
    names, definitions = _definitions(_DEFINITIONS)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Midstream realtime events",
        **definitions,
        "properties": {
            "client": {"properties": {type_: {"$ref": f"#/$defs/{names[type_]}"} for type_ in CLIENT_EVENTS}},
            "server": {"properties": {type_: {"$ref": f"#/$defs/{names[type_]}"} for type_ in EVENTS}},
        },
    }


@functools.cache
def asyncapi() -> dict[str, Any]:
    """AsyncAPI 3.0. Server events of the OpenAI dialect are not repeated here."""
    names, definitions = _definitions(_ASYNCAPI_DEFINITIONS)
    messages = {
        type_: {"name": type_, "payload": {"$ref": f"#/components/schemas/{name}"}} for type_, name in names.items()
    }
    channel = "#/channels/realtime"

    def operation(action: str, types: list[str]) -> dict[str, Any]:
        chosen = [{"$ref": f"{channel}/messages/{type_}"} for type_ in types]
        return {"action": action, "channel": {"$ref": channel}, "messages": chosen}

    return {
        "asyncapi": "3.0.0",
        "info": {"title": "Midstream", "version": "1", "description": "The OpenAI Realtime dialect with typed text."},
        "channels": {"realtime": {"address": "/v1/realtime", "messages": messages}},
        "operations": {
            "clientEvents": operation("receive", list(CLIENT_EVENTS)),
            "extensionEvents": operation("send", list(EVENTS)),
        },
        "components": {"schemas": definitions["$defs"]},
    }


async def schema_json(request: Request) -> Response:
    """GET /docs/schema.json."""
    return JSONResponse(json_schema())


async def asyncapi_json(request: Request) -> Response:
    """GET /docs/asyncapi.json."""
    return JSONResponse(asyncapi())


def _definitions(template: str) -> tuple[dict[str, str], dict[str, Any]]:
    """The definition's name of each event type, and `$defs`."""
    models = CLIENT_EVENTS | EVENTS
    references, definitions = models_json_schema(
        [(model, "validation") for model in models.values()], ref_template=template
    )
    names = {type_: references[model, "validation"]["$ref"].rsplit("/", 1)[1] for type_, model in models.items()}
    return names, {"$defs": definitions["$defs"]}
