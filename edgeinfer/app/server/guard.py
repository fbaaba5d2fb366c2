"""Access control: host names, origins, the API key and how often it is wrong, sizes and pace of bodies; an id for every
request.

In: HTTP requests whose bodies have not been read yet. Out: the same requests, or an error response. Web pages in the
user's browser can send requests to this computer, so besides the key the guard checks `Origin`, and `Host` against DNS
rebinding. There are no WebSockets, which browsers open without asking. It is plain ASGI, so streams pass through
unchanged.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import math
import secrets
from collections.abc import Mapping

from fastapi import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edgeinfer.app.server.errors import REQUEST_ID, APIError
from edgeinfer.app.server.listening import ServerOptions, is_own_page
from edgeinfer.app.server.routes.page import PAGE_PATHS
from edgeinfer.app.server.wrong_keys import WrongKeys

OPEN_PATHS = frozenset({"/health", "/v1/health", *PAGE_PATHS})
"""Paths that need no API key: the health check, and the page, which holds no data."""

MOST_DIGITS = 20
"""Of a Content-Length: longer ones take Python long to read, or it refuses to."""
FOREIGN_SITES = frozenset({"cross-site", "same-site"})
"""What browsers say in `Sec-Fetch-Site` of requests of another origin's page."""
BODY_S = 60.0
"""Seconds that a body may pause."""


class Guard:
    """Middleware that lets only allowed requests through."""

    def __init__(self, app: ASGIApp, options: ServerOptions) -> None:
        self._app, self._options, self._wrong_keys = app, options, WrongKeys()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "there are no WebSockets here"})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        send = _numbered(scope, send)
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            self._check_host(headers.get("host", ""))
            if not scope["query_string"].isascii():  # routing fails on it
                raise APIError(400, "the query has bytes that are not ASCII; write them as %XX")
            if scope["method"] == "OPTIONS" and self._is_foreign(scope["path"], headers):
                await _permit_nothing(send)
                return
            self._check(scope["method"], scope["path"], headers, (scope.get("client") or (None,))[0])
            await self._app(scope, self._limited(receive), send)
        except APIError as error:
            await _refuse(error.body_at(scope["path"]), error, self._readers(headers.get("origin")), send)

    def _check_host(self, host: str) -> None:
        """Raises APIError for a name that is not this server's."""
        if not self._options.knows_host(host):
            raise APIError(403, f"this server is not called {host!r}; `edgeinfer serve --allow-host` adds a name")

    def _is_foreign(self, path: str, headers: Mapping[str, str]) -> bool:
        """Whether a request comes from a page that may not use the server.

        Of pictures, scripts and frames of a page browsers tell no origin, but that it is another one.
        """
        origin = headers.get("origin")
        if self._options.knows_origin(origin or ""):
            return False
        if origin is None:
            return headers.get("sec-fetch-site") in FOREIGN_SITES and path not in OPEN_PATHS
        return not is_own_page(origin, headers.get("host", ""))

    def _check(self, method: str, path: str, headers: dict[str, str], client: str | None) -> None:
        """Raises APIError if the request is not allowed. `client`: the address it came from."""
        options, origin = self._options, headers.get("origin")
        if self._is_foreign(path, headers):
            pages = f"pages of {origin}" if origin is not None else "other pages"
            raise APIError(403, f"{pages} may not use this server; `edgeinfer serve --allow-origin` lets them")
        if options.key is not None and path not in OPEN_PATHS and not (method == "OPTIONS" and origin is not None):
            self._check_key(options.key, _keys(headers), client)
        length = headers.get("content-length", "0")
        if not length.isdecimal():
            raise APIError(400, "Content-Length is no number")
        if len(length) > MOST_DIGITS or int(length) > options.most_body_bytes:
            raise self._too_large()

    def _check_key(self, key: str, sent: list[str], client: str | None) -> None:
        """Raises APIError unless the key was sent; after many wrong ones for a while whatever was sent."""
        if not sent:
            raise _unknown("a key is needed: Authorization: Bearer KEY, or x-api-key: KEY")
        if (wait_s := self._wrong_keys.wait_s(client)) > 0:
            raise _too_many(wait_s)
        if any(hmac.compare_digest(each.encode(), key.encode()) for each in sent):
            self._wrong_keys.right(client)
            return
        if (wait_s := self._wrong_keys.wrong(client)) > 0:
            raise _too_many(wait_s)
        raise _unknown("the key is wrong")

    def _readers(self, origin: str | None) -> dict[str, str]:
        """CORS headers, so that allowed pages can read why a request was refused."""
        if origin is None or not self._options.knows_origin(origin):
            return {}
        return {"Access-Control-Allow-Origin": origin, "Vary": "Origin"}

    def _too_large(self) -> APIError:
        return APIError(413, f"a request may have {self._options.most_body_bytes} bytes (`edgeinfer serve --max-body`)")

    def _limited(self, receive: Receive) -> Receive:
        """Wrap `receive` to limit the size of bodies sent without a length, and how long a body may pause."""
        n_bytes, is_whole = 0, False

        async def counted() -> Message:
            nonlocal n_bytes, is_whole
            try:
                async with asyncio.timeout(None if is_whole else BODY_S):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(408, f"the body paused for more than {BODY_S:.0f} s") from None
            is_whole = not message.get("more_body", False)
            n_bytes += len(message.get("body", b""))
            if n_bytes > self._options.most_body_bytes:
                raise HTTPException(413, self._too_large().message)  # body parsers let only this exception through
            return message

        return counted


def _unknown(message: str) -> APIError:
    return APIError(401, message, "invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


def _too_many(wait_s: float) -> APIError:
    seconds = math.ceil(wait_s)
    message = f"too many wrong keys came from this address; try again in {seconds} s"
    return APIError(429, message, "too_many_wrong_keys", headers={"Retry-After": str(seconds)})


def _keys(headers: Mapping[str, str]) -> list[str]:
    """The keys that a request sends: as a bearer token, or as Anthropic's clients do; "" for another scheme."""
    sent = []
    if authorization := headers.get("authorization"):
        scheme, _, token = authorization.partition(" ")
        sent.append(token.strip() if scheme.casefold() == "bearer" else "")
    if key := headers.get("x-api-key"):
        sent.append(key.strip())
    return sent


def _numbered(scope: Scope, send: Send) -> Send:
    """Give a request an id, and wrap `send` to add it to the headers, by the names that clients look for.

    Names of headers get capitals, as some clients compare them so.
    """
    identity = scope[REQUEST_ID] = f"req_{secrets.token_hex(12)}"
    headers = [(name, identity.encode()) for name in (b"request-id", b"x-request-id")]

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            sent_headers = [*message.get("headers", ()), *headers]
            message = {**message, "headers": [(name.title(), value) for name, value in sent_headers]}
        await send(message)

    return sent


async def _permit_nothing(send: Send) -> None:
    """Answer a browser's question whether a page may send a request: without a permission, it may not."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


async def _refuse(record: Mapping[str, object], error: APIError, further: Mapping[str, str], send: Send) -> None:
    body = json.dumps(record).encode()
    start = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
    all_headers = {**error.headers, **further, **start}
    headers = [(name.lower().encode(), value.encode()) for name, value in all_headers.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
