"""Requests as clients send them: packed bodies, JSON whatever it is called, and HEAD where there is GET.

In: HTTP requests. Out: the same requests with plain bodies, no larger than allowed, of the type application/json if
they have no other use. `curl -d` calls every body a form, and some clients call it nothing.
"""

from __future__ import annotations

import zlib

from fastapi import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

IS_HEAD = "edgeinfer.is_head"
"""What a request of HEAD, which routes see as GET, has in its scope."""
_WINDOW = 47
"""zlib's number for its own format and gzip's, whichever the body has."""
_PACKED = frozenset({"gzip", "x-gzip", "deflate"})
_OWN_TYPES = (b"multipart/", b"audio/", b"image/")
"""Bodies of these types are no JSON."""


class PlainBodies:
    """Middleware that unpacks bodies and calls them JSON."""

    def __init__(self, app: ASGIApp, most_bytes: int) -> None:
        self._app, self._most_bytes = app, most_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "HEAD":
            await self._app({**scope, "method": "GET", IS_HEAD: True}, receive, _without_body(send))
            return
        if scope["type"] != "http" or scope["method"] in ("GET", "OPTIONS"):
            await self._app(scope, receive, send)
            return
        told, dropped = dict(scope["headers"]), set[bytes]()
        coding = told.get(b"content-encoding", b"").decode("latin-1").strip().casefold()
        further: list[tuple[bytes, bytes]] = []
        if not told.get(b"content-type", b"").lower().startswith(_OWN_TYPES):
            dropped.add(b"content-type")
            further.append((b"content-type", b"application/json"))
        if coding and coding != "identity":
            dropped |= {b"content-length", b"content-encoding"}
            receive = _Unpacked(receive, coding, self._most_bytes)
        headers = [(name, value) for name, value in scope["headers"] if name not in dropped]
        await self._app({**scope, "headers": headers + further}, receive, send)


def _without_body(send: Send) -> Send:
    """Send a response to GET as the one to HEAD."""

    async def sent(message: Message) -> None:
        await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

    return sent


class _Unpacked:
    """Receives a packed body as a plain one. Raises HTTPException, which body parsers let through."""

    def __init__(self, receive: Receive, coding: str, most_bytes: int) -> None:
        self._receive, self._coding, self._most_bytes = receive, coding, most_bytes
        self._unpacker = zlib.decompressobj(_WINDOW)
        self._n_bytes = 0

    async def __call__(self) -> Message:
        message = await self._receive()
        if message["type"] != "http.request":
            return message
        if self._coding not in _PACKED:
            raise HTTPException(415, f"Content-Encoding {self._coding!r} is not known; gzip and deflate are")
        body = self._unpack(message.get("body", b""))
        if not message.get("more_body", False) and not self._unpacker.eof:
            raise HTTPException(400, "the packed body ends too soon")
        return {**message, "body": body}

    def _unpack(self, packed: bytes) -> bytes:
        room = self._most_bytes - self._n_bytes
        try:
            body = self._unpacker.decompress(packed, room + 1)
        except zlib.error as reason:
            raise HTTPException(400, f"the body is not packed as {self._coding}: {reason}") from None
        self._n_bytes += len(body)
        if self._n_bytes > self._most_bytes:
            raise HTTPException(413, f"the body has more than {self._most_bytes} bytes (`edgeinfer serve --max-body`)")
        return body
