"""HTTP for downloads: one request, with errors classified as retryable or final, and remote files as if open locally.

In: an address and headers. Out: an open response; `Remote`, what the server reports about a file (size, validators,
support for ranges); a seekable binary stream whose reads are small range requests, so that `zipfile` can list an
archive, or a header can be parsed, without fetching the body. Proxies come from the environment; credentials in an
address are sent only to its own host. No redirect leads from https to http, or from the internet to this computer or
its network. Does not retry, stores nothing on disk; independent of what is in the body.
"""

from __future__ import annotations

import base64
import http.client
import io
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from edgeinfer.errors import DownloadFailed
from edgeinfer.models.download.addresses import is_inside
from edgeinfer.models.download.policy import DownloadPolicy

RETRIED_STATUSES = {408, 425, 429, 500, 502, 503, 504}
CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
TROUBLE = (OSError, http.client.HTTPException)
BUFFER_BYTES = 1 << 18
READ_CAP_BYTES = 1 << 28  # limit for reading a header; no archive directory or header is larger


class ConnectionCutError(Exception):
    """A connection that broke or could not be established; a retry may succeed.

    `answered`: whether a server responded at all. `cause`: the reason on its own, without saying that there was no
    connection.
    """

    def __init__(self, reason: str, *, answered: bool = True, cause: str = "") -> None:
        super().__init__(reason)
        self.answered, self.cause = answered, cause or reason


class Refused(DownloadFailed):
    """A server responded with a refusal."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Remote:
    """What the server reports about a file."""

    url: str
    nbytes: int | None  # None if the server does not report it
    ranged: bool  # whether ranges can be requested
    etag: str | None
    last_modified: str | None
    headers: tuple[tuple[str, str], ...] = ()  # sent with each request

    @property
    def validator(self) -> str | None:
        """The value for `If-Range`: a strong entity tag, else a date."""
        strong = self.etag is not None and not self.etag.startswith("W/")
        return self.etag if strong else self.last_modified


def shown(url: str) -> str:
    """An address suitable for messages: without credentials, query and fragment."""
    parts = urllib.parse.urlsplit(url)
    return urllib.parse.urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


@contextmanager
def open_url(
    url: str, headers: Mapping[str, str], policy: DownloadPolicy, opener: urllib.request.OpenerDirector | None = None
) -> Iterator[http.client.HTTPResponse]:
    """Request `url` and yield the open response, closing it afterwards. `opener`: None for the usual one.

    Raises ConnectionCutError for transient errors, including those inside the `with`, and Refused for final ones.
    """
    try:
        response = (opener or _opener()).open(_request(url, headers), timeout=policy.stall_s)
    except urllib.error.HTTPError as error:
        status, reason = error.code, error.reason
        error.close()
        if status in RETRIED_STATUSES:
            raise ConnectionCutError(f"the server answered {status} {reason}") from None
        raise Refused(_refusal(url, status, reason), status) from None
    except urllib.error.URLError as error:
        raise _unreached(_plain(error.reason)) from None
    except TROUBLE as error:
        raise _unreached(_plain(error)) from None
    except ValueError as error:
        raise DownloadFailed(f"{shown(url)} is not an address: {error}") from None
    with response:
        yield response


def read_piece(response: http.client.HTTPResponse, nbytes: int) -> bytes:
    """The next bytes of the body as they arrive, at most `nbytes`; b"" at its end. Raises ConnectionCutError."""
    try:
        return response.read1(nbytes)
    except TimeoutError:
        raise ConnectionCutError("the server stopped sending") from None
    except TROUBLE as error:
        raise ConnectionCutError(f"the connection broke ({_plain(error)})") from None


def probe(url: str, policy: DownloadPolicy, headers: tuple[tuple[str, str], ...] = ()) -> Remote:
    """What the server reports about `url`, from a request for its first byte. Raises ConnectionCutError, Refused."""
    try:
        with open_url(url, {**dict(headers), "Range": "bytes=0-0"}, policy) as response:
            matched = CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
            ranged = response.status == 206 and matched is not None
            nbytes = int(matched[3]) if ranged and matched else body_length(response)
            etag, date = response.headers.get("ETag"), response.headers.get("Last-Modified")
            return Remote(url, nbytes, ranged, etag, date, headers)
    except Refused as refused:
        if refused.status != 416:  # an empty file has no first byte
            raise
    return Remote(url, 0, False, None, None, headers)


def body_length(response: http.client.HTTPResponse) -> int | None:
    """Bytes of the body according to its header."""
    length = response.headers.get("Content-Length", "")
    return int(length) if length.isdecimal() else None


class _OutwardRedirects(urllib.request.HTTPRedirectHandler):
    """Redirects that lead neither to what is less protected, nor to what only this computer can reach."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        """The request to follow. Raises DownloadFailed."""
        old, new = urllib.parse.urlsplit(req.full_url), urllib.parse.urlsplit(newurl)
        resolves = not urllib.request.getproxies().keys() & {"http", "https", "all"}
        leads_in = is_inside(new.hostname or "", resolves=resolves) and not is_inside(
            old.hostname or "", resolves=resolves
        )
        if leads_in or (old.scheme == "https" and new.scheme != "https"):
            fp.close()
            why = "which is not public" if leads_in else "which is not encrypted"
            raise DownloadFailed(f"{shown(req.full_url)} redirects to {shown(newurl)[:200]}, {why}: not followed")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opener() -> urllib.request.OpenerDirector:
    """An opener for http and https only, with the environment's proxies."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        _OutwardRedirects(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.UnknownHandler(),
    ):
        opener.add_handler(handler)
    return opener


def _request(url: str, headers: Mapping[str, str]) -> urllib.request.Request:
    parts = urllib.parse.urlsplit(url)
    credentials, at, host = parts.netloc.rpartition("@")
    path = urllib.parse.quote(parts.path, safe="/%:@!$&'()*+,;=~-._")
    bare = urllib.parse.urlunsplit((parts.scheme, host, path, parts.query, ""))
    request = urllib.request.Request(bare, headers={"User-Agent": "edgeinfer", "Accept-Encoding": "identity"})
    for name, value in headers.items():
        if name == "Authorization":
            request.add_unredirected_header(name, value)
        else:
            request.add_header(name, value)
    if at:
        token = base64.b64encode(urllib.parse.unquote(credentials).encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {token}")
    return request


def _refusal(url: str, status: int, reason: str) -> str:
    advice = {
        401: "it wants credentials; put them into the address (https://user:password@host/…)",
        403: "access is refused; check that the address is right and that you may read it",
        404: "there is no such file; check the address",
        410: "the file is gone; look for another address",
        416: "the server has fewer bytes than it said; try again",
    }.get(status, "check the address")
    return f"{shown(url)}: the server answered {status} {reason}: {advice}"


def _unreached(cause: str) -> ConnectionCutError:
    return ConnectionCutError(f"cannot be reached ({cause})", answered=False, cause=cause)


def _plain(reason: object) -> str:
    if isinstance(reason, TimeoutError):
        return "no answer in time"
    if isinstance(reason, OSError) and reason.strerror:
        return reason.strerror
    return str(reason) or type(reason).__name__


class RangedFile(io.RawIOBase):
    """The bytes of a `Remote`, fetched as they are read. Reads raise DownloadFailed."""

    def __init__(self, remote: Remote, policy: DownloadPolicy) -> None:
        super().__init__()
        if remote.nbytes is None or not remote.ranged:
            raise DownloadFailed(f"{shown(remote.url)} cannot be read in parts")
        self._remote = remote
        self._nbytes = remote.nbytes
        self._policy = policy
        self._place = 0
        self._fetched_bytes = 0

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move the read position; sends nothing."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._nbytes}[whence]
        if base + offset < 0:
            raise OSError(f"no byte {base + offset} in {shown(self._remote.url)}")
        self._place = base + offset
        return self._place

    def tell(self) -> int:
        """The read position."""
        return self._place

    def readinto(self, target: memoryview) -> int:  # type: ignore[override]
        """Fill `target` from the read position with one range request; less at the end of the file."""
        wanted = min(len(target), self._nbytes - self._place)
        if wanted <= 0:
            return 0
        if self._fetched_bytes + wanted > READ_CAP_BYTES:
            raise DownloadFailed(f"{shown(self._remote.url)}: its header is larger than {READ_CAP_BYTES} bytes")
        data = self._fetch(self._place, wanted)
        target[: len(data)] = data
        self._place += len(data)
        self._fetched_bytes += len(data)
        return len(data)

    def _fetch(self, start: int, nbytes: int) -> bytes:
        for failures in range(1, self._policy.attempts + 1):
            try:
                return self._fetch_once(start, nbytes)
            except ConnectionCutError as cut:
                reason = str(cut)
                if failures < self._policy.attempts:
                    time.sleep(self._policy.wait_s(failures))
        raise DownloadFailed(f"{shown(self._remote.url)}: {reason}, {self._policy.attempts} times; try again later")

    def _fetch_once(self, start: int, nbytes: int) -> bytes:
        headers = {**dict(self._remote.headers), "Range": f"bytes={start}-{start + nbytes - 1}"}
        with open_url(self._remote.url, headers, self._policy) as response:
            matched = CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
            if response.status != 206 or matched is None or int(matched[1]) != start:
                raise DownloadFailed(f"{shown(self._remote.url)} no longer serves parts of the file; try again")
            if int(matched[3]) != self._nbytes or response.headers.get("ETag") != self._remote.etag:
                raise DownloadFailed(f"{shown(self._remote.url)} changed while it was read; try again")
            pieces = bytearray()
            while len(pieces) < nbytes and (piece := read_piece(response, nbytes - len(pieces))):
                pieces += piece
        if len(pieces) < nbytes:
            raise ConnectionCutError("the connection broke")
        return bytes(pieces)


def open_ranged(remote: Remote, policy: DownloadPolicy) -> io.BufferedReader:
    """A buffered, seekable stream over `remote`. Raises DownloadFailed if the server does not serve ranges."""
    return io.BufferedReader(RangedFile(remote, policy), BUFFER_BYTES)
