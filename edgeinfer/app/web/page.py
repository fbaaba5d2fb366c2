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
from edgeinfer.process import environment

KEPT_BYTES = 4096
"""Bytes of standard error that are kept."""
LAST_S = 5.0
"""Seconds for a process to end after its output has ended."""
RESET = "\x1bc"
"""Clears a terminal, whatever it shows."""


class KeptStream:
    """A stream that remembers its last bytes."""

    def __init__(self, stream: asyncio.StreamReader) -> None:
        self._stream = stream
        self.last = b""

    async def read(self, most_bytes: int) -> bytes:
        """Read the next bytes; empty at the end."""
        found = await self._stream.read(most_bytes)
        self.last = (self.last + found)[-KEPT_BYTES:]
        return found

    async def read_rest(self) -> None:
        """Read to the end."""
        while await self.read(KEPT_BYTES):
            pass


class TabService(AppService):
    """Runs a tab's process, shows the reason if it fails, and closes the tab when it ends."""

    async def _open_app_process(self, width: int = 80, height: int = 24) -> asyncio.subprocess.Process:
        process = await super()._open_app_process(width, height)
        assert process.stderr is not None
        self._errors = KeptStream(process.stderr)
        process.stderr = cast("asyncio.StreamReader", self._errors)
        return process

    def _build_environment(self, width: int = 80, height: int = 24) -> dict[str, str]:
        return environment(super()._build_environment(width, height))

    async def run(self) -> None:
        """Forward the process's output until it ends."""
        await super().run()
        assert self._process is not None
        code = None
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_S):
                code = await self._process.wait()
                await self._errors.read_rest()
        with suppress(ConnectionError, RuntimeError):  # the browser disconnected first
            if code:
                lines = self._errors.last.decode("utf-8", "replace").splitlines()
                shown = [f"this tab's app has ended with exit code {code}", "", *lines]
                await self.remote_write_bytes((RESET + "\r\n".join(shown)).encode())
            await self.remote_close()


class TabServer(Server):
    """textual-serve's server with our `TabService`."""

    def __init__(self, command: str, title: str) -> None:
        super().__init__(command, title=title)
        self._services: set[TabService] = set()

    async def on_shutdown(self, app: web.Application) -> None:
        """Ask all tab processes to quit; the caller waits for them."""
        for service in list(self._services):
            await service.send_meta({"type": "quit"})

    async def handle_websocket(self, request: web.Request) -> web.WebSocketResponse:
        """Run a tab's process as long as its browser is connected."""
        websocket = web.WebSocketResponse(heartbeat=15)
        await websocket.prepare(request)

        async def close() -> None:
            await websocket.close()

        service = TabService(
            self.command,
            write_bytes=websocket.send_bytes,
            write_str=websocket.send_str,
            close=close,
            download_manager=self.download_manager,
        )
        await service.start(to_int(request.query.get("width", ""), 80), to_int(request.query.get("height", ""), 24))
        self._services.add(service)
        try:
            await self._process_messages(websocket, service)
        finally:
            await service.stop()
            self._services.discard(service)
        return websocket


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
