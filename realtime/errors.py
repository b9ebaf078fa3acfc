"""The one exception of the protocol core, and how it looks on the wire."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ValidationError

from realtime.ids import server_event

ErrorType = Literal["invalid_request_error", "server_error", "rate_limit_error"]

_CODE_OF_PYDANTIC_ERROR = {
    "missing": "missing_required_parameter",
    "unsupported_modality": "unsupported_modality",
}


class ProtocolError(Exception):
    """A request that is refused; the session stays usable. `event_id` is the client's, if it sent one."""

    def __init__(
        self,
        code: str,
        message: str,
        param: str | None = None,
        event_id: str | None = None,
        type: ErrorType = "invalid_request_error",
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param
        self.event_id = event_id
        self.type = type

    def to_event(self) -> dict[str, Any]:
        """The server event `error`."""
        error = {
            "type": self.type,
            "code": self.code,
            "message": self.message,
            "param": self.param,
            "event_id": self.event_id,
        }
        return server_event("error", error=error)


def from_validation_error(error: ValidationError, root: str = "", event_id: str | None = None) -> ProtocolError:
    """The first complaint of pydantic as a `ProtocolError`; `root` is put before the path of the parameter."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    param = _path(root, first["loc"])
    code = _CODE_OF_PYDANTIC_ERROR.get(first["type"], "invalid_value")
    # pydantic's own words for this one are about tags, which the client knows nothing of
    message = "Input has the wrong type" if first["type"] == "union_tag_invalid" else first["msg"]
    return ProtocolError(code, f"{param or 'event'}: {message}", param or None, event_id)


def _path(root: str, loc: tuple[int | str, ...]) -> str:
    path = root
    for part in loc:
        if isinstance(part, int):
            path += f"[{part}]"
        elif not part.startswith("<"):  # names of union members are written <like this>
            path += f".{part}" if path else part
    return path[:256]
