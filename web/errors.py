"""Refusals over HTTP, in the shape that the official SDKs understand."""

from __future__ import annotations

from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response


class ApiError(Exception):
    """A request that is refused with `{"error": {message, type, param, code}}`."""

    def __init__(self, status: int, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param

    def to_wire(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self._type, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        return JSONResponse(self.to_wire(), status_code=self.status, headers=self._headers)

    @property
    def _type(self) -> str:
        if self.status == 401:
            return "authentication_error"
        if self.status == 429:
            return "rate_limit_error"
        return "invalid_request_error" if self.status < 500 else "server_error"

    @property
    def _headers(self) -> dict[str, str]:
        if self.status == 401:
            return {"WWW-Authenticate": "Bearer"}
        return {"Retry-After": "1"} if self.status in (429, 503) else {}


def engine_unavailable() -> ApiError:
    return ApiError(503, "engine_unavailable", "no engine is available right now; try again in a moment")


async def answer_api_error(request: Request, error: Exception) -> Response:
    """Exception handler for `ApiError`."""
    assert isinstance(error, ApiError)
    return error.response()


async def answer_http_exception(request: Request, error: Exception) -> Response:
    """Exception handler for the router's own 404 and 405: JSON under /v1, plain text elsewhere."""
    assert isinstance(error, HTTPException)
    if request.url.path.startswith("/v1"):
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "http_error")
        return ApiError(error.status_code, code, f"{request.method} {request.url.path}: {error.detail}").response()
    return PlainTextResponse(error.detail, status_code=error.status_code, headers=error.headers)


async def answer_crash(request: Request, error: Exception) -> Response:
    """Exception handler for whatever was not foreseen; the details are in the log only."""
    return ApiError(500, "internal_error", "the server failed").response()
