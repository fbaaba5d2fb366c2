"""A web server for tests of downloads: serves bytes, and misbehaves on demand."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

RANGE = re.compile(r"bytes=(\d+)-(\d*)")


@dataclass
class Served:
    """One file and how it is served."""

    data: bytes
    etag: str | None = '"v1"'
    last_modified: str | None = None
    ranges: bool = True
    announce_length: bool = True
    cut_after: int | None = None  # bytes after which a body that was asked for to its end is cut
    cuts: int = 10**9  # how many answers are cut before the server behaves
    stall: threading.Event | None = None  # sends half of a body that was asked for to its end, then waits for this
    statuses: list[int] = field(default_factory=list)  # answered first, one per request
    redirect: str | None = None
    content_type: str | None = None
    cache_control: str | None = None


@dataclass
class Request:
    """A request that was answered."""

    path: str
    range: str | None
    if_range: str | None
    authorization: str | None
    sent_bytes: int = 0


class FileServer(ThreadingHTTPServer):
    """Serves `files` by path and keeps a log of requests."""

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, Served] = {}
        self.log: list[Request] = []
        self.credentials: str | None = None

    def url(self, path: str) -> str:
        """The address of a path."""
        return f"http://127.0.0.1:{self.server_port}{path}"

    def body_bytes(self) -> int:
        """All bytes of bodies sent so far."""
        return sum(request.sent_bytes for request in self.log)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that leave are part of the tests."""


class Handler(BaseHTTPRequestHandler):
    """Answers GET."""

    server: FileServer
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        """Answer as to GET, without the body."""
        self.do_GET()

    def do_GET(self) -> None:
        headers = self.headers
        entry = Request(self.path, headers.get("Range"), headers.get("If-Range"), headers.get("Authorization"))
        self.server.log.append(entry)
        self.close_connection = True
        served = self.server.files.get(self.path.partition("?")[0])
        if self.server.credentials not in (None, entry.authorization):
            return self._status(401)
        if served is None:
            return self._status(404)
        if served.statuses:
            return self._status(served.statuses.pop(0))
        if served.redirect is not None:
            self.send_response(302)
            self.send_header("Location", served.redirect)
            self.send_header("Content-Length", "0")
            return self.end_headers()
        return self._body(served, entry)

    def _status(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        if status == 401:
            self.send_header("WWW-Authenticate", 'Basic realm="index"')
        self.end_headers()

    def _body(self, served: Served, entry: Request) -> None:
        total = len(served.data)
        start, stop, status = 0, total, 200
        matched = RANGE.fullmatch(entry.range or "")
        fresh = entry.if_range in (None, served.etag, served.last_modified)
        if served.ranges and matched and fresh:
            start = int(matched[1])
            stop = min(int(matched[2]) + 1, total) if matched[2] else total
            status = 206
            if start >= total:
                return self._status(416)
        self.send_response(status)
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{total}")
        if served.announce_length:
            self.send_header("Content-Length", str(stop - start))
        if served.ranges:
            self.send_header("Accept-Ranges", "bytes")
        if served.content_type:
            self.send_header("Content-Type", served.content_type)
        if served.cache_control:
            self.send_header("Cache-Control", served.cache_control)
        if served.etag:
            self.send_header("ETag", served.etag)
        if served.last_modified:
            self.send_header("Last-Modified", served.last_modified)
        self.end_headers()
        if self.command == "HEAD":
            return None
        return self._send(served, entry, served.data[start:stop])

    def _send(self, served: Served, entry: Request, body: bytes) -> None:
        to_the_end = entry.range is None or entry.range.endswith("-")
        if served.cut_after is not None and served.cuts > 0 and to_the_end:
            served.cuts -= 1
            body = body[: served.cut_after]
        half = len(body) // 2 if served.stall is not None and to_the_end else len(body)
        for piece in (body[:half], body[half:]):
            for place in range(0, len(piece), 1 << 14):
                chunk = piece[place : place + (1 << 14)]
                self.wfile.write(chunk)
                entry.sent_bytes += len(chunk)
            if served.stall is not None and piece is not body and to_the_end and not served.stall.is_set():
                self.wfile.flush()
                served.stall.wait()


@contextmanager
def serving() -> Iterator[FileServer]:
    """A running server."""
    server = FileServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        for served in server.files.values():
            if served.stall is not None:
                served.stall.set()
        server.shutdown()
        server.server_close()
        thread.join()
