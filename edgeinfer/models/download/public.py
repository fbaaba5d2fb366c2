"""Fetches files that others name, from public addresses of the internet alone.

In: an http or https address that is not trusted. Out: the bytes of an image, within limits; DownloadFailed says what
would work. A name is resolved once and the connection goes to what was checked, so that a name whose meaning changes
(DNS rebinding) reaches nothing else; redirects are checked anew. This computer's own addresses, private, link-local
and other special ones are never connected to, nor are the environment's proxies, which would resolve names themselves.
"""

from __future__ import annotations

import http.client
import math
import socket
import ssl
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from edgeinfer.errors import DownloadFailed
from edgeinfer.models.download.addresses import is_public
from edgeinfer.models.download.http import ConnectionCutError, body_length, open_url, read_piece, shown
from edgeinfer.models.download.policy import DownloadPolicy

STALL_S = 8.0
"""Seconds without a byte after which a connection is given up."""
PIECE_BYTES = 1 << 17
MOST_REDIRECTS = 4
KINDS = ("image/", "application/octet-stream", "binary/octet-stream")
"""What bytes may be called; servers of files that know no images call them octets."""


def is_web_address(text: str) -> bool:
    """Whether a text is an http or https address."""
    return text[:8].lower().startswith(("http://", "https://"))


@dataclass(frozen=True, slots=True)
class FetchedFile:
    """The bytes of a file. `keep_s`: seconds for which its server allows to keep it; infinite where it does not say."""

    data: bytes
    keep_s: float = math.inf


def fetch_public(url: str, most_bytes: int, limit_s: float, go_on: Callable[[], None]) -> FetchedFile:
    """An image at a public address. `go_on`: raises to end the work. Raises DownloadFailed."""
    reach, policy = _Reach(limit_s), DownloadPolicy(attempts=1, stall_s=STALL_S)
    try:
        with reach, open_url(url, {"Accept": "image/*"}, policy, _opener(reach)) as response:
            kind = response.headers.get("Content-Type", KINDS[-1]).strip().lower()
            if not kind.startswith(KINDS):
                raise DownloadFailed(f"{shown(url)} is {kind[:80]!r}, no image")
            if (body_length(response) or 0) > most_bytes:
                raise _too_large(url, most_bytes)
            pieces = bytearray()
            while piece := read_piece(response, PIECE_BYTES):
                go_on()
                pieces += piece
                if len(pieces) > most_bytes:
                    raise _too_large(url, most_bytes)
            if reach.is_over or len(pieces) < (body_length(response) or 0):
                raise ConnectionCutError("the connection broke")
            return FetchedFile(bytes(pieces), _keep_s(response.headers.get("Cache-Control", "")))
    except ConnectionCutError as cut:
        told = f"took longer than {limit_s:.0f} s" if reach.is_over else str(cut)
        raise DownloadFailed(f"{shown(url)} cannot be fetched: {told}; send the image itself") from None


def _keep_s(directives: str) -> float:
    """How long a file may be kept: a header `Cache-Control` (RFC 9111)."""
    told = dict(each.strip().lower().partition("=")[::2] for each in directives.split(","))
    if "no-store" in told or "no-cache" in told:
        return 0
    age = told.get("max-age", "")
    return float(age) if age.isascii() and age.isdecimal() else math.inf


def _too_large(url: str, most_bytes: int) -> DownloadFailed:
    return DownloadFailed(f"{shown(url)} has more than {most_bytes / 1e6:.0f} MB")


class _Reach:
    """Connects to public addresses; what is open when the time is over is cut off."""

    def __init__(self, limit_s: float) -> None:
        self.is_over = False
        self._until_s = time.monotonic() + limit_s
        self._timer = threading.Timer(limit_s, self._cut)
        self._timer.daemon = True
        self._open: socket.socket | None = None

    def __enter__(self) -> _Reach:
        self._timer.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._timer.cancel()

    def _cut(self) -> None:
        self.is_over = True
        if self._open is not None:
            with suppress(OSError):
                socket.socket.shutdown(self._open, socket.SHUT_RDWR)

    def keep(self, connected: socket.socket) -> None:
        """Cut off this connection when the time is over."""
        self._open = connected
        if self.is_over:
            self._cut()

    def connected(self, host: str, port: int, stall_s: float) -> socket.socket:
        """A connection to a host whose addresses are all public. Raises DownloadFailed, OSError."""
        failure = OSError("the name has no address")
        for family, kind, protocol, _, address in public_places(host, port):
            left_s = self._until_s - time.monotonic()
            if self.is_over or left_s <= 0:
                raise TimeoutError
            connecting = socket.socket(family, kind, protocol)
            try:
                connecting.settimeout(min(stall_s, left_s))
                connecting.connect(address)
                connecting.settimeout(stall_s)
            except OSError as reason:
                connecting.close()
                failure = reason
                continue
            self.keep(connecting)
            return connecting
        raise failure


def public_places(host: str, port: int) -> list[tuple[Any, ...]]:
    """The addresses of a host, as `getaddrinfo` gives them. Raises DownloadFailed if any is not public, OSError."""
    import psutil

    try:
        places = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError:
        raise DownloadFailed(f"{host[:80]!r} is no name of a host") from None
    own = {each.address for found in psutil.net_if_addrs().values() for each in found}
    if any(not is_public(str(place[4][0])) or place[4][0] in own for place in places):
        raise DownloadFailed(f"{host[:80]} is no public address, and nothing else is fetched; send the image itself")
    return list(places)


class _Plain(http.client.HTTPConnection):
    """A connection to a public address."""

    def __init__(self, host: str, *, reach: _Reach, timeout: float) -> None:
        super().__init__(host, timeout=timeout)
        self._reach = reach

    def connect(self) -> None:
        """Connect to the host's checked address."""
        self.sock = self._reach.connected(self.host, self.port, self.timeout or STALL_S)


class _Encrypted(http.client.HTTPSConnection):
    """The same, encrypted, for the name that was asked for."""

    def __init__(self, host: str, *, reach: _Reach, timeout: float) -> None:
        self._tls = ssl.create_default_context()
        super().__init__(host, timeout=timeout, context=self._tls)
        self._reach = reach

    def connect(self) -> None:
        """Connect to the host's checked address, and check that it is the host."""
        plain = self._reach.connected(self.host, self.port, self.timeout or STALL_S)
        self.sock = self._tls.wrap_socket(plain, server_hostname=self.host, do_handshake_on_connect=False)
        self._reach.keep(self.sock)
        self.sock.do_handshake()


class _PlainHandler(urllib.request.HTTPHandler):
    def __init__(self, reach: _Reach) -> None:
        super().__init__()
        self._reach = reach

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_Plain, req, reach=self._reach)  # type: ignore[arg-type]


class _EncryptedHandler(urllib.request.HTTPSHandler):
    def __init__(self, reach: _Reach) -> None:
        super().__init__()
        self._reach = reach

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_Encrypted, req, reach=self._reach)  # type: ignore[arg-type]


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Redirects to http and https, few of them, and none from https to http."""

    max_redirections = MOST_REDIRECTS
    max_repeats = 1

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        """The request to follow. Raises DownloadFailed for another scheme."""
        if not is_web_address(newurl) or (req.type == "https" and urllib.parse.urlsplit(newurl).scheme != "https"):
            fp.close()
            raise DownloadFailed(f"{shown(req.full_url)} redirects to {shown(newurl)[:200]}, which is not followed")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opener(reach: _Reach) -> urllib.request.OpenerDirector:
    opener = urllib.request.OpenerDirector()
    for handler in (
        _PlainHandler(reach),
        _EncryptedHandler(reach),
        _Redirects(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.UnknownHandler(),
    ):
        opener.add_handler(handler)
    return opener
