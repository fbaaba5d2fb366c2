"""Streams that clients come back for: an answer goes on without its client, and is told again from any byte on.

In: requests with the header X-Conversation-Id that ask for a stream. Out: their responses, kept in memory under that
id, the latest up to a number and a size; the routes of `/v1/stream` tell them again or stop them, as llama-server's do.
So a page that is loaded again, or a phone that slept, loses nothing. Plain ASGI, for all APIs that stream.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import AsyncIterator

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edgeinfer.app.server.errors import APIError

HEADER = b"x-conversation-id"
MOST_ID = 500
"""Most characters of an id."""
MOST_STREAMS = 100
MOST_BYTES = 64 << 20
"""Most streams, and most bytes of all, while some of them are over."""
STREAMED = ("text/event-stream", "application/x-ndjson")
GONE = 499
"""The status of an answer whose client left before it began."""


class KeptStream:
    """A streamed response. `media_type` is None until it begins; `stopped` is set to end it."""

    def __init__(self) -> None:
        self.media_type: str | None = None
        self.stopped = asyncio.Event()
        self.n_bytes = 0
        self._data = bytearray()
        self._is_over = False
        self._changed = asyncio.Event()

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes."""
        return self._is_over

    def add(self, data: bytes) -> None:
        """Keep what was sent."""
        if not self._is_over:
            self._data += data
            self.n_bytes += len(data)
            self._tell()

    def end(self) -> None:
        """Nothing more comes."""
        self._is_over = True
        self._tell()

    async def follow(self, start: int) -> AsyncIterator[bytes]:
        """What was sent from byte `start` on, and what comes, until the end."""
        while True:
            changed = self._changed
            if start < len(self._data):
                data = bytes(memoryview(self._data)[start:])
                start += len(data)
                yield data
            elif self._is_over:
                return
            else:
                await changed.wait()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class KeptStreams:
    """The streams of one server, by the ids that clients gave. Used from its event loop alone."""

    def __init__(self, most: int = MOST_STREAMS, most_bytes: int = MOST_BYTES) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._kept: OrderedDict[str, KeptStream] = OrderedDict()

    def get(self, identity: str) -> KeptStream | None:
        """A stream by its id."""
        return self._kept.get(identity)

    def begin(self, identity: str) -> KeptStream:
        """A new stream; an earlier one of the same id is stopped."""
        self.stop(identity)
        kept = self._kept[identity] = KeptStream()
        return kept

    def stop(self, identity: str) -> bool:
        """Stop a stream and forget it. Returns whether there was one."""
        kept = self._kept.pop(identity, None)
        if kept is not None:
            kept.stopped.set()
            kept.end()
        return kept is not None

    def drop(self, kept: KeptStream) -> None:
        """Forget a stream without stopping it, wherever it is."""
        for identity in [identity for identity, each in self._kept.items() if each is kept]:
            del self._kept[identity]
        kept.end()

    def make_room(self) -> None:
        """Forget the oldest streams that are over while there are too many or too long ones.

        Those that run stay, so that they can be stopped; there are no more of them than answers at a time.
        """
        while len(self._kept) > self._most or self._n_bytes() > self._most_bytes:
            oldest = next((each for each in self._kept.values() if each.is_over), None)
            if oldest is None:
                return
            self.drop(oldest)

    def close(self) -> None:
        """Stop all streams."""
        for identity in list(self._kept):
            self.stop(identity)

    def _n_bytes(self) -> int:
        return sum(each.n_bytes for each in self._kept.values())


class KeepsStreams:
    """Middleware that keeps the streams of requests that name a conversation."""

    def __init__(self, app: ASGIApp, streams: KeptStreams) -> None:
        self._app, self._streams = app, streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        identity = _identity(scope)
        if not identity:
            await self._app(scope, receive, send)
            return
        kept = self._streams.begin(identity)
        answer = _KeptAnswer(kept, self._streams, receive, send)
        try:
            await self._app(scope, answer.receive, answer.send)
            await answer.complete()
        finally:
            kept.end()
            if kept.media_type is None:
                self._streams.drop(kept)
        if answer.is_cancelled:
            raise APIError(400, "the answer was cancelled before it began", "cancelled")


class _KeptAnswer:
    """One request and its response."""

    def __init__(self, kept: KeptStream, streams: KeptStreams, receive: Receive, send: Send) -> None:
        self._kept, self._streams, self._receive, self._send = kept, streams, receive, send
        self._body = bytearray()
        self._outlives: bool | None = None  # whether it goes on without its client; None until the body is known
        self._is_open = False  # whether its client has a part of the response
        self.is_cancelled = False

    async def receive(self) -> Message:
        """The request; after its body, that the client has gone only if the stream is stopped."""
        if self._outlives:
            await self._kept.stopped.wait()
            return {"type": "http.disconnect"}
        message = await self._receive()
        if self._outlives is None and message["type"] == "http.request":
            self._body += message.get("body", b"")
            if not message.get("more_body", False):
                self._outlives = _asks_for_stream(bytes(self._body))
                self._body.clear()
        return message

    async def send(self, message: Message) -> None:
        """The response; a stream is also kept."""
        if message["type"] == "http.response.start":
            self.is_cancelled = self._kept.stopped.is_set() and message["status"] == GONE
            media_type = dict(message["headers"]).get(b"content-type", b"").decode("latin-1")
            if self._outlives and media_type.startswith(STREAMED):
                self._kept.media_type = media_type
        elif self._kept.media_type is not None:
            self._kept.add(message.get("body", b""))
            self._streams.make_room()
        if not self.is_cancelled:
            self._is_open = message["type"] == "http.response.start" or message.get("more_body", False)
            await self._send(message)

    async def complete(self) -> None:
        """End the body of a stream that was stopped, which its client would take for a broken connection."""
        if self._is_open and self._kept.stopped.is_set():
            await self._send({"type": "http.response.body", "body": b""})


def _identity(scope: Scope) -> str:
    """The id of the conversation that a request belongs to, "" for none. Raises APIError for one that is too long."""
    if scope["type"] != "http" or scope["method"] != "POST":
        return ""
    headers: dict[bytes, bytes] = dict(scope["headers"])
    identity = headers.get(HEADER, b"").decode("latin-1").strip()
    if len(identity) > MOST_ID:
        raise APIError(400, f"X-Conversation-Id has {len(identity)} characters; {MOST_ID} are the most")
    return identity


def _asks_for_stream(body: bytes) -> bool:
    try:
        record = json.loads(body)
    except (ValueError, RecursionError):
        return False  # the route says what is wrong
    return isinstance(record, dict) and record.get("stream") is True
