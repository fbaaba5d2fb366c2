"""uvicorn's server, whose connections may not be held open for nothing: how long a request may take to say what it is.

In: an application. Out: a server that closes a connection which has not sent the whole head of a request in HEAD_S
seconds. h11 limits the bytes of a head (64 KiB). How slowly a body may come is the guard's concern.
"""

from __future__ import annotations

import asyncio
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_S = 20.0
"""Seconds from a connection, or from the first byte of a later request, to the end of the request's head."""
LAST_S = 5.0
"""Seconds for running requests to end when the server shuts down; what still runs then is cut off."""


def http_server(app: ASGIApp) -> uvicorn.Server:
    """A server of an application, silent and without its name; what it listens to is given to `serve`."""
    return uvicorn.Server(
        uvicorn.Config(
            app,
            http=PunctualConnection,
            ws="none",
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=int(LAST_S),
            server_header=False,
        )
    )


class PunctualConnection(H11Protocol):
    """HTTP/1.1 with a limit on the time of each request's head."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to count the seconds of the first head."""
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """Stop counting once a head is whole; a later one is counted from its first byte."""
        cycle = self.cycle
        if self._late is None and self._is_answered():
            self._await_head()
        super().data_received(data)
        if self.cycle is not cycle:
            self._stop_counting()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is awaited any more."""
        self._stop_counting()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        self._late = self.loop.call_later(HEAD_S, self._close_late)

    def _stop_counting(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _close_late(self) -> None:
        self._late = None
        if self._is_answered():
            self.transport.close()

    def _is_answered(self) -> bool:
        """Whether there is no request, or none that is not answered."""
        return getattr(self.cycle, "response_complete", True)
