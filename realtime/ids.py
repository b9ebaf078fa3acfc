"""Identifiers and the envelope of server events."""

from __future__ import annotations

import secrets
from typing import Any


def new_id(prefix: str) -> str:
    """`prefix` ("event_", "item_", "resp_", "call_", "sess_") and 128 random bits in hex."""
    return prefix + secrets.token_hex(16)


def server_event(type: str, /, **fields: Any) -> dict[str, Any]:
    """A server event with a fresh `event_id`."""
    return {"type": type, "event_id": new_id("event_"), **fields}
