"""GET /v1/models: what the live nodes serve."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from web.auth import authenticate
from web.errors import ApiError
from web.state import web_of

DEFAULT_MODEL = "default"


async def list_models(request: Request) -> Response:
    """GET /v1/models."""
    return JSONResponse({"object": "list", "data": await _served(request)})


async def get_model(request: Request) -> Response:
    """GET /v1/models/{model}; `default` is whichever comes first."""
    name = request.path_params["model"]
    for model in await _served(request):
        if name in (model["id"], DEFAULT_MODEL):
            return JSONResponse(model)
    raise model_not_found(name)


def model_not_found(name: str) -> ApiError:
    return ApiError(404, "model_not_found", f"the model {name[:100]!r} is not served here", "model")


async def _served(request: Request) -> list[dict[str, Any]]:
    web = web_of(request)
    if authenticate(request, web.settings) is None:
        raise ApiError(401, "invalid_api_key", "a valid API key is needed")
    await web.nodes.refresh()
    return [{"id": name, "object": "model", "created": 0, "owned_by": "midstream"} for name in web.nodes.models()]
