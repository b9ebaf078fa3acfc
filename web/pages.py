"""The two pages, the login form, and the headers that keep a browser strict about them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from urllib.parse import parse_qs

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from web.auth import COOKIE, authenticate, key_is_known, login_token, origin_allowed
from web.errors import ApiError
from web.state import web_of

ROOT = Path(__file__).resolve().parent.parent
TEMPLATES = ROOT / "templates"
STATIC = ROOT / "static"
LOGIN_BODY_LIMIT = 4096

_SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}


async def chat_page(request: Request) -> Response:
    """GET /."""
    return _page(request, "chat.html")


async def admin_page(request: Request) -> Response:
    """GET /admin."""
    return _page(request, "admin.html")


async def login(request: Request) -> Response:
    """GET and POST /login: trades an API key for a cookie that scripts cannot read."""
    web = web_of(request)
    if request.method != "POST":
        return _render(request, "login.html", refused=False)
    if not origin_allowed(request, web.settings):
        raise ApiError(403, "origin_not_allowed", "this origin may not log in")
    key = await _posted_key(request)
    if not key_is_known(key, web.settings):
        return _render(request, "login.html", status=401, refused=True)
    response = RedirectResponse("/", status_code=303)
    secure = request.url.scheme == "https"
    response.set_cookie(COOKIE, login_token(key), httponly=True, samesite="strict", secure=secure)
    return response


def _page(request: Request, name: str) -> Response:
    web = web_of(request)
    if authenticate(request, web.settings) is not None:
        return _render(request, name)
    if web.settings.api_keys:
        return RedirectResponse("/login", status_code=303)
    raise ApiError(401, "invalid_api_key", "without MIDSTREAM_API_KEYS this server answers to its own machine only")


def _render(request: Request, name: str, status: int = 200, **context: object) -> Response:
    web = web_of(request)
    context["static"] = web.static_url
    response = web.templates.TemplateResponse(request, name, context, status_code=status)
    response.headers["Cache-Control"] = "no-store"
    return response


async def _posted_key(request: Request) -> str:
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > LOGIN_BODY_LIMIT:
            raise ApiError(413, "request_too_large", "that is too long for a key")
    fields = parse_qs(body.decode(errors="replace"))
    return fields.get("key", [""])[0].strip()


def static_version(folder: Path) -> str:
    """Names the content of the static files, so that their addresses change with it and caches may keep them."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            digest.update(path.relative_to(folder).as_posix().encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


class VersionedFiles(StaticFiles):
    """Static files under an address that names their content."""

    def file_response(self, *args: object, **kwargs: object) -> Response:
        response = super().file_response(*args, **kwargs)  # type: ignore[arg-type]
        response.headers["Cache-Control"] = "public, max-age=31536000, immutable"
        return response


class SecurityHeaders:
    """ASGI middleware: the same strict headers on every HTTP answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def add_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, add_headers if scope["type"] == "http" else send)
