"""The page that shows the app: textual-serve starts a process for each tab, behind a guard of ours.

In: a command, a key. Out: an aiohttp application. Whoever can use the app can read the user's chats, so a link with a
key leads in, once; then a cookie does, which pages of others cannot use. Everything comes from this computer.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from html import escape
from importlib import resources
from urllib.parse import urlsplit

from aiohttp import web
from textual_serve.server import Server

from edgeinfer.app.listening import is_known, name_of

COOKIE = "edgeinfer_key"
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
    """The page, for who has the key."""

    def __init__(self, command: str, key: str, hosts: tuple[str, ...]) -> None:
        """`hosts`: names besides this computer's own that requests may be addressed to."""
        self._server = Server(command, title="edgeinfer")
        self._key, self._hosts = key, hosts
        self._folder = resources.files("edgeinfer.app.web")
        self.n_tabs = 0

    def application(self) -> web.Application:
        """What a web server is to serve."""

        @web.middleware
        async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
            return await self._guarded(request, handler)

        application = web.Application(middlewares=[guard])
        application.add_routes(
            [
                web.get("/", self._index),
                web.get("/page.css", self._part),
                web.get("/page.js", self._part),
                web.get("/ws", self._tab),
                web.get("/download/{key}", self._server.handle_download),
                web.static("/static", self._server.statics_path),
            ]
        )
        return application

    async def _guarded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Lets through what may pass."""
        refusal = self._refusal(request)
        if refusal is not None:
            return refusal
        response = await handler(request)
        if not response.prepared:
            response.headers.update(HEADERS)
        return response

    def _refusal(self, request: web.Request) -> web.Response | None:
        """Why a request may not pass; or the way in, for who brings the key."""
        host, origin = request.host, request.headers.get("Origin")
        if not is_known(name_of(host), self._hosts):
            return _plain(403, f"this page is not called {host!r}")
        if origin is not None and urlsplit(origin).netloc != host:
            return _plain(403, f"pages of {origin} may not use this one")
        if self._is_key(request.cookies.get(COOKIE)):
            return None
        if request.path != "/" or not self._is_key(request.query.get("key")):
            return _plain(401, NO_KEY)
        response = web.Response(status=303, headers={**HEADERS, "Location": "./"})
        response.set_cookie(COOKIE, self._key, httponly=True, samesite="Strict", path="/")
        return response

    def _is_key(self, given: str | None) -> bool:
        return given is not None and hmac.compare_digest(given.encode(), self._key.encode())

    async def _index(self, request: web.Request) -> web.Response:
        text = (self._folder / "page.html").read_text(encoding="utf-8")
        wanted = request.query.get("fontsize", "")
        size = int(wanted) if wanted.isascii() and wanted.isdecimal() and int(wanted) in FONT_SIZES else FONT_SIZE
        filled = text.replace("{websocket}", escape(f"ws://{request.host}/ws")).replace("{font_size}", str(size))
        return web.Response(text=filled, content_type="text/html")

    async def _part(self, request: web.Request) -> web.Response:
        name = request.path.lstrip("/")
        return web.Response(text=(self._folder / name).read_text(encoding="utf-8"), content_type=PARTS[name])

    async def _tab(self, request: web.Request) -> web.StreamResponse:
        self.n_tabs += 1
        try:
            return await self._server.handle_websocket(request)
        finally:
            self.n_tabs -= 1


def _plain(status: int, text: str) -> web.Response:
    return web.Response(status=status, text=text + "\n", headers=HEADERS)
