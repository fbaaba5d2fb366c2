"""One HTTP request that came from another process, answered by the server's own application.

In: the request's scope and whole body. Out: the messages of its response, in lists of what is there. As with a socket,
a client that leaves is told to the application, which goes on or ends as it likes. Knows no Ray.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any

from starlette.types import ASGIApp, Message, Scope

from edgeinfer.app.server.errors import REQUEST_ID, APIError

LOG = logging.getLogger("edgeinfer.server")
SENT_FIELDS = (
    "type", "asgi", "http_version", "method", "scheme", "path", "raw_path", "query_string", "root_path", "headers",
    "client", "server", REQUEST_ID,
)  # fmt: skip
"""What of a scope goes to another process; the rest are objects of the one that received the request."""


def sent_scope(scope: Scope) -> dict[str, Any]:
    """A request's scope as it goes to another process."""
    return {name: scope[name] for name in SENT_FIELDS if name in scope}


class ForwardedRequest:
    """A request, and its response as it comes."""

    def __init__(self, app: ASGIApp, scope: Mapping[str, Any], body: bytes) -> None:
        """Call in an event loop, where the application begins to answer."""
        self._body: bytes | None = body
        self._messages: list[Message] = []
        self._changed, self._gone = asyncio.Event(), asyncio.Event()
        self._is_over = self._has_begun = False
        self.task = asyncio.create_task(self._answer(app, dict(scope)))

    async def messages(self) -> AsyncIterator[list[Message]]:
        """Yield what the application sends, until the response ends; to close this is to leave."""
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                messages, self._messages = self._messages, []
                if messages:
                    yield messages
                if self._is_over and not self._messages:
                    return
        finally:
            self._gone.set()

    async def _answer(self, app: ASGIApp, scope: Scope) -> None:
        try:
            await app(scope, self._receive, self._send)
        except Exception as reason:
            LOG.error("%s %s failed", scope["method"], scope["path"], exc_info=reason)
            if not self._has_begun:
                await self._fail(scope["path"])
        finally:
            self._is_over = True
            self._changed.set()

    async def _receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        self._has_begun = True
        if not self._gone.is_set():
            self._messages.append(message)
            self._changed.set()

    async def _fail(self, path: str) -> None:
        from fastapi.responses import JSONResponse

        response = JSONResponse(APIError(500, "the server failed; its log says why").body_at(path), 500)
        await response({"type": "http"}, self._receive, self._send)
