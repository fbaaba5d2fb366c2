"""The page that shows the app, and the processes of its tabs, which textual-serve runs behind our own access guard.

In: a command, a key. Out: an aiohttp application. Anyone who can use the app can read the user's chats, so opening a
tab requires the key. The page stores the key where no page on another port can read it, which a cookie would not
ensure: see page.js. The page itself holds no secret. Everything is served from this computer.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable
from contextlib import suppress
from importlib import resources
from typing import cast

from aiohttp import web
from textual_serve.app_service import AppService
from textual_serve.server import Server, to_int

from edgeinfer.app.server.listening import is_own_page, may_be_called, name_of
from edgeinfer.app.web.tab_service import TabServer

FONT_SIZE = 16
FONT_SIZES = range(6, 65)
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; connect-src 'self' ws: wss:; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
        "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
PARTS = {"page.css": "text/css", "page.js": "text/javascript"}
NO_KEY = "This page needs the link that `edgeinfer chat --web` has printed: it holds the key."
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Page:
    """The page; opening a tab requires the key."""

    def __init__(self, command: str, key: str, host: str) -> None:
        """`host`: the host it listens on; requests may be addressed to it."""
        self._server = TabServer(command, title="edgeinfer")
        self._key, self._host = key, host
        self._folder = resources.files("edgeinfer.app.web")

    def application(self) -> web.Application:
        """The application for a web server to serve."""

        @web.middleware
        async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
            return await self._guarded(request, handler)

        application = web.Application(middlewares=[guard])
        application.on_shutdown.append(self._server.on_shutdown)
        application.add_routes(
            [
                web.get("/", self._index),
                web.get("/page.css", self._part),
                web.get("/page.js", self._part),
                web.get("/tab/{key}", self._tab),
                web.get("/download/{key}", self._server.handle_download),  # a random key only its tab knows
                web.static("/static", self._server.statics_path),
            ]
        )
        return application

    async def _guarded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Handle a request if it is allowed."""
        refusal = self._refusal(request)
        if refusal is not None:
            return refusal
        response = await handler(request)
        if not response.prepared:
            response.headers.update(HEADERS)
        return response

    def _refusal(self, request: web.Request) -> web.Response | None:
        """The response that refuses a request; None if it is allowed."""
        host, origin = request.host, request.headers.get("Origin")
        if not may_be_called(name_of(host), self._host):
            return _plain(403, f"this page is not called {host!r}")
        if origin is not None and not is_own_page(origin, host):
            return _plain(403, f"pages of {origin} may not use this one")
        return None

    async def _index(self, request: web.Request) -> web.Response:
        text = (self._folder / "page.html").read_text(encoding="utf-8")
        wanted = request.query.get("fontsize", "")
        size = int(wanted) if wanted.isascii() and wanted.isdecimal() and int(wanted) in FONT_SIZES else FONT_SIZE
        return web.Response(text=text.replace("{font_size}", str(size)), content_type="text/html")

    async def _part(self, request: web.Request) -> web.Response:
        name = request.path.lstrip("/")
        return web.Response(text=(self._folder / name).read_text(encoding="utf-8"), content_type=PARTS[name])

    async def _tab(self, request: web.Request) -> web.StreamResponse:
        given = request.match_info["key"].encode(errors="replace")
        if not hmac.compare_digest(given, self._key.encode()):
            return _plain(401, NO_KEY)
        return await self._server.handle_websocket(request)


def _plain(status: int, text: str) -> web.Response:
    return web.Response(status=status, text=text + "\n", headers=HEADERS)
