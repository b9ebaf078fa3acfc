from __future__ import annotations

from typing import Any

import pytest
from starlette.requests import HTTPConnection

from web.auth import COOKIE, LOCAL_OWNER, authenticate, login_token, origin_allowed, owner_of
from web.settings import WebSettings


def connection(client: str = "127.0.0.1", protocols: list[str] | None = None, **headers: str) -> HTTPConnection:
    headers = {"host": "localhost:8000", **headers}
    scope: dict[str, Any] = {
        "type": "http",
        "client": (client, 1234),
        "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
        "subprotocols": protocols or [],
    }
    return HTTPConnection(scope)


OPEN = WebSettings(api_keys=[], allowed_origins=["https://chat.example.org"])
KEYED = WebSettings(api_keys=["k1", "k2"])


def test_comma_lists_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIDSTREAM_API_KEYS", " a, b ,")
    assert WebSettings().api_keys == ["a", "b"]


def test_without_configured_keys_this_machine_may_come_in_with_any_key_or_none() -> None:
    assert authenticate(connection(), OPEN) == LOCAL_OWNER
    assert authenticate(connection(authorization="Bearer anything"), OPEN) == owner_of("anything")
    assert authenticate(connection("::1", host="[::1]:8000"), OPEN) == LOCAL_OWNER


def test_without_configured_keys_other_machines_may_not() -> None:
    assert authenticate(connection("10.0.0.7"), OPEN) is None


def test_without_configured_keys_a_foreign_host_name_for_this_machine_is_refused() -> None:
    assert authenticate(connection(host="rebound.example.com:8000"), OPEN) is None


@pytest.mark.parametrize(
    "shown",
    [
        connection(authorization="Bearer k2"),
        connection("10.0.0.7", host="x.example", authorization="bearer k2"),
        connection(protocols=["realtime", "openai-insecure-api-key.k2"]),
        connection(cookie=f"{COOKIE}={login_token('k2')}"),
    ],
)
def test_a_configured_key_is_accepted_in_every_form_and_names_the_owner(shown: HTTPConnection) -> None:
    assert authenticate(shown, KEYED) == owner_of("k2")


@pytest.mark.parametrize(
    "shown",
    [
        connection(),
        connection(authorization="Bearer wrong"),
        connection(authorization="Basic k1"),
        connection(authorization="Bearer kü"),
        connection(cookie=f"{COOKIE}=k1"),
        connection(cookie=f"{COOKIE}={login_token('k2')}", authorization="Bearer wrong"),
    ],
)
def test_anything_else_is_refused(shown: HTTPConnection) -> None:
    assert authenticate(shown, KEYED) is None


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        (None, True),
        ("http://localhost:8000", True),
        ("http://LOCALHOST:8000", True),
        ("https://chat.example.org", True),
        ("http://localhost:8001", False),
        ("http://localhost", False),
        ("http://localhost:8000.evil.example", False),
        ("https://chat.example.org.evil.example", False),
        ("null", False),
        ("file://localhost:8000", False),
    ],
)
def test_only_the_own_and_the_configured_origins_are_allowed(origin: str | None, allowed: bool) -> None:
    shown = connection() if origin is None else connection(origin=origin)
    assert origin_allowed(shown, OPEN) is allowed
