from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.web.conftest import Running, Serve
from web.pages import static_version


@pytest.mark.parametrize("path", ["/", "/admin"])
async def test_pages_are_served_with_strict_headers(server: Running, path: str) -> None:
    async with server.client() as client:
        response = await client.get(path)
        assert response.status_code == 200
        policy = response.headers["content-security-policy"]
        assert "unsafe" not in policy
        assert "default-src 'none'" in policy
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["cache-control"] == "no-store"
        assert not re.search(r"<script(?![^>]*src=)|\sstyle=|\son\w+=", response.text)
        for address in re.findall(r'(?:href|src)="(/static/[^"]+)"', response.text):
            assert (await client.get(address)).status_code == 200


async def test_static_files_may_be_cached_for_ever(server: Running) -> None:
    async with server.client() as client:
        response = await client.get(f"{server.web.static_url}/chat.js")
        assert "immutable" in response.headers["cache-control"]
        assert response.headers["content-type"].startswith("text/javascript")
        assert (await client.get(f"{server.web.static_url}/../web/app.py")).status_code == 404


def test_the_static_address_changes_with_the_content(tmp_path: Path) -> None:
    (tmp_path / "a.js").write_text("1")
    first = static_version(tmp_path)
    assert static_version(tmp_path) == first
    (tmp_path / "a.js").write_text("2")
    assert static_version(tmp_path) != first


async def test_with_keys_a_browser_logs_in_first(serve: Serve) -> None:
    async with serve(api_keys=["secret"]) as server, server.client() as client:
        response = await client.get("/")
        assert (response.status_code, response.headers["location"]) == (303, "/login")
        assert "API key" in (await client.get("/login")).text
        assert (await client.post("/login", data={"key": "wrong"})).status_code == 401
        response = await client.post("/login", data={"key": "secret"})
        assert (response.status_code, response.headers["location"]) == (303, "/")
        assert "secret" not in response.headers["set-cookie"]
        assert {"HttpOnly", "SameSite=strict"} <= set(response.headers["set-cookie"].split("; "))
        assert (await client.get("/")).status_code == 200


async def test_a_foreign_page_cannot_log_in(serve: Serve) -> None:
    async with serve(api_keys=["secret"]) as server, server.client() as client:
        foreign = {"Origin": "https://evil.example"}
        assert (await client.post("/login", data={"key": "secret"}, headers=foreign)).status_code == 403


async def test_a_login_body_over_the_limit_is_refused(serve: Serve) -> None:
    async with serve(api_keys=["secret"]) as server, server.client() as client:
        assert (await client.post("/login", content=b"x" * 10_000)).status_code == 413
