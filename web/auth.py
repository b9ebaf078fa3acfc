"""Who may talk to the server, and from which pages.

Three ways to show a key: `Authorization: Bearer`, the WebSocket subprotocol that browsers use, or the cookie that
the login page sets. Without configured keys only this machine is let in, and only under a name of this machine, so
that a foreign page cannot reach it by pointing its own host name here.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from web.settings import WebSettings

COOKIE = "midstream_login"
LOCAL_OWNER = "local"
SUBPROTOCOL = "realtime"
_KEY_SUBPROTOCOL = "openai-insecure-api-key."


def origin_allowed(connection: HTTPConnection, settings: WebSettings) -> bool:
    """True without an Origin (not a browser), for the page's own host and port, and for the configured origins."""
    origin = connection.headers.get("origin")
    if origin is None:
        return True
    if origin.rstrip("/").lower() in (allowed.rstrip("/").lower() for allowed in settings.allowed_origins):
        return True
    parts = urlsplit(origin)
    return parts.scheme in ("http", "https") and parts.netloc.lower() == connection.headers.get("host", "").lower()


def authenticate(connection: HTTPConnection, settings: WebSettings) -> str | None:
    """The owner that this client's sessions belong to, or None when it may not come in."""
    key = presented_key(connection)
    if not settings.api_keys:
        if not _is_local(connection):
            return None
        return owner_of(key) if key else LOCAL_OWNER
    if key is not None:
        return owner_of(key) if _contains(settings.api_keys, key) else None
    cookie = connection.cookies.get(COOKIE, "")
    matching = [known for known in settings.api_keys if hmac.compare_digest(login_token(known), _ascii(cookie))]
    return owner_of(matching[0]) if matching else None


def presented_key(connection: HTTPConnection) -> str | None:
    """The API key in the Authorization header or among the WebSocket subprotocols."""
    scheme, _, key = connection.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and key.strip():
        return key.strip()
    for name in offered_subprotocols(connection):
        if name.startswith(_KEY_SUBPROTOCOL):
            return name.removeprefix(_KEY_SUBPROTOCOL)
    return None


def offered_subprotocols(connection: HTTPConnection) -> list[str]:
    offered: list[str] = connection.scope.get("subprotocols", [])
    return offered


def key_is_known(key: str, settings: WebSettings) -> bool:
    return _contains(settings.api_keys, key)


def owner_of(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def login_token(key: str) -> str:
    """What the login cookie holds: proves knowledge of the key without being it."""
    return hmac.new(key.encode(), b"midstream login", hashlib.sha256).hexdigest()


def _contains(keys: Sequence[str], key: str) -> bool:
    # No early exit: the time taken must not tell which key was close.
    return any([hmac.compare_digest(known.encode(), key.encode()) for known in keys])  # noqa: C419


def _ascii(text: str) -> str:
    return text if text.isascii() else ""


def _is_local(connection: HTTPConnection) -> bool:
    if connection.client is None or not _is_loopback(connection.client.host):
        return False
    name = urlsplit(f"//{connection.headers.get('host', '')}").hostname or ""
    return name == "localhost" or name.endswith(".localhost") or _is_loopback(name)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
