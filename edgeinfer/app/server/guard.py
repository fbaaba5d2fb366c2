"""Who may ask: names of this computer, web pages that were allowed, holders of the key; and no more than so much.

In: HTTP requests, before anything of them is read. Out: the same, or a refusal. A page in the user's browser can send
requests to this computer, so that the key is not the only thing looked at: `Host` tells names that a stranger's DNS
points here, `Origin` tells pages. Plain ASGI, so that streams pass untouched.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping

from fastapi import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edgeinfer.app.listening import is_own_page, name_of
from edgeinfer.app.server.failures import Refusal
from edgeinfer.app.server.options import ServerOptions

OPEN_PATHS = frozenset({"/health", "/v1/health"})
"""What needs no key: whether the server is there, nothing else."""


class Guard:
    """Lets through what may pass."""

    def __init__(self, app: ASGIApp, options: ServerOptions) -> None:
        self._app, self._options = app, options

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            self._check(scope["method"], scope["path"], headers)
            await self._app(scope, self._limited(receive), send)
        except Refusal as refusal:
            await _refuse(refusal, self._readers(headers.get("origin")), send)

    def _check(self, method: str, path: str, headers: dict[str, str]) -> None:
        """Raises Refusal."""
        options = self._options
        host = headers.get("host", "")
        if not options.knows_host(name_of(host)):
            raise Refusal(403, f"this server is not called {host!r}; `edgeinfer serve --allow-host` adds a name")
        origin = headers.get("origin")
        if origin is not None and origin not in options.origins and not is_own_page(origin, host):
            raise Refusal(403, f"pages of {origin} may not use this server; `edgeinfer serve --allow-origin` lets them")
        if options.key is not None and path not in OPEN_PATHS and not (method == "OPTIONS" and origin is not None):
            given = headers.get("authorization", "")
            scheme, _, token = given.partition(" ")
            if scheme.casefold() != "bearer" or not hmac.compare_digest(token.strip().encode(), options.key.encode()):
                wrong = "the key is wrong" if given else "a key is needed: Authorization: Bearer KEY"
                raise Refusal(401, wrong, "invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
        length = headers.get("content-length", "0")
        if not length.isdecimal():
            raise Refusal(400, "Content-Length is no number")
        if int(length) > options.most_body_bytes:
            raise self._too_large()

    def _readers(self, origin: str | None) -> dict[str, str]:
        """What lets pages that may use this server read why a request of theirs is refused."""
        if origin is None or origin not in self._options.origins:
            return {}
        return {"Access-Control-Allow-Origin": origin, "Vary": "Origin"}

    def _too_large(self) -> Refusal:
        return Refusal(413, f"a request may have {self._options.most_body_bytes} bytes (`edgeinfer serve --max-body`)")

    def _limited(self, receive: Receive) -> Receive:
        """Counts what comes without a length."""
        n_bytes = 0

        async def counted() -> Message:
            nonlocal n_bytes
            message = await receive()
            n_bytes += len(message.get("body", b""))
            if n_bytes > self._options.most_body_bytes:
                raise HTTPException(413, self._too_large().message)  # whoever reads bodies lets these through alone
            return message

        return counted


async def _refuse(refusal: Refusal, further: Mapping[str, str], send: Send) -> None:
    body = json.dumps(refusal.body()).encode()
    start = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
    told = {**refusal.headers, **further, **start}
    headers = [(name.lower().encode(), value.encode()) for name, value in told.items()]
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
