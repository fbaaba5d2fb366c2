"""Manages a tab's process from the page's process: forwards its output and reports its end.

In: a command, a browser's connection. Out: bytes for the browser. textual-serve does the work; by itself it would leave
the last output, or none, in the browser when the process crashes.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import cast

from aiohttp import web
from textual_serve.app_service import AppService
from textual_serve.server import Server, to_int

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
