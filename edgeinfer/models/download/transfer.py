"""Receiving the body of one remote file: resume, retries, checksum, progress.

In: a `Remote`, an open `DownloadPart`, a `DownloadPolicy`. Out: the SHA-256 of the finished part; the caller renames
it. After a failure: a broken connection or an interrupt keeps the part; a wrong checksum, a full disk, a changed file
or a refusal by the watcher removes it. Independent of the file's contents.
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable
from pathlib import Path

from edgeinfer.errors import DownloadFailed
from edgeinfer.models.download.http import (
    CONTENT_RANGE,
    ConnectionCutError,
    Refused,
    Remote,
    body_length,
    open_url,
    probe,
    read_piece,
    shown,
)
from edgeinfer.models.download.part import DownloadPart, require_space
from edgeinfer.models.download.policy import DownloadPolicy, Progress, ProgressMeter
from edgeinfer.text_values import size_text

FIRST_LOOK_BYTES = 1 << 20

Watcher = Callable[[Path, int | None], bool]
"""Inspects the beginning of a file, given its path and size; returns True when done; raises to stop."""


def ask(url: str, policy: DownloadPolicy, headers: tuple[tuple[str, str], ...] = ()) -> Remote:
    """What the server reports about `url`. Raises DownloadFailed if it cannot be reached or refuses."""
    for failures in range(1, policy.attempts + 1):
        try:
            return probe(url, policy, headers)
        except ConnectionCutError as cut:
            reason = str(cut)
            if not cut.answered:
                break
            if failures < policy.attempts:
                time.sleep(policy.wait_s(failures))
    raise DownloadFailed(f"{shown(url)}: {reason}; check the network and try again, or give the path of a .gguf file")


def receive(
    remote: Remote,
    part: DownloadPart,
    policy: DownloadPolicy,
    progress: Progress,
    *,
    expected_sha256: str | None = None,
    watcher: Watcher | None = None,
    besides_bytes: int = 0,
) -> str:
    """Complete `part` from `remote` and return the SHA-256 of the whole, in hex.

    `besides_bytes` are needed later on the same disk and must be free as well. Raises DownloadFailed; KeyboardInterrupt
    propagates with a note that says what is kept.
    """
    try:
        _make_room(remote, part, besides_bytes)
        Transfer(remote, part, policy, ProgressMeter(progress, policy.report_every_s), watcher).run()
        found_sha256 = part.complete()
    except KeyboardInterrupt as stop:
        if part.nbytes:
            stop.add_note(f"{size_text(part.nbytes)} of {shown(remote.url)} are saved; the same command resumes there")
        raise
    if expected_sha256 is not None and found_sha256 != expected_sha256.lower():
        part.discard()
        raise DownloadFailed(
            f"{shown(remote.url)} arrived with a wrong checksum and was removed (SHA-256 {found_sha256}, "
            f"{expected_sha256} was announced); try again, or use another source"
        )
    return found_sha256


def _make_room(remote: Remote, part: DownloadPart, besides_bytes: int) -> None:
    if remote.nbytes is None:
        return
    try:
        require_space(part.path.parent, remote.nbytes - part.nbytes + besides_bytes, shown(remote.url))
    except DownloadFailed:
        part.discard()
        raise


class Transfer:
    """One download until it is complete: tries, counts consecutive failures, waits, resumes."""

    def __init__(
        self, remote: Remote, part: DownloadPart, policy: DownloadPolicy, meter: ProgressMeter, watcher: Watcher | None
    ) -> None:
        self._remote = remote
        self._part = part
        self._policy = policy
        self._meter = meter
        self._watcher = watcher
        self._look_at_bytes = FIRST_LOOK_BYTES
        self._started = False

    def run(self) -> None:
        """Receive until all bytes have arrived. Raises DownloadFailed."""
        self._meter.start(self._part.nbytes, self._remote.nbytes)
        failures = 0
        while self._remote.nbytes is None or self._part.nbytes < self._remote.nbytes:
            before = self._part.nbytes
            try:
                self._try_once()
                break
            except ConnectionCutError as cut:
                gained = self._part.nbytes - before
                failures = 0 if gained >= self._progress_bytes() else failures + 1
                if failures >= self._policy.attempts:
                    raise self._given_up(cut) from None
            except Refused:
                if not self._part.nbytes:
                    self._part.discard()
                raise
            self._meter.report(self._part.nbytes, self._remote.nbytes, last=True)  # the moment to stop
            time.sleep(self._policy.wait_s(max(failures, 1)))
        self._meter.report(self._part.nbytes, self._remote.nbytes, last=True)
        if self._watcher is not None:
            self._look()

    def _try_once(self) -> None:
        headers = dict(self._remote.headers)
        if self._part.nbytes:
            headers["Range"] = f"bytes={self._part.nbytes}-"
            if self._remote.validator is not None:
                headers["If-Range"] = self._remote.validator
        with open_url(self._remote.url, headers, self._policy) as response:
            total_bytes = self._match(response)
            while piece := read_piece(response, self._policy.chunk_bytes):
                self._part.append(piece)
                self._meter.report(self._part.nbytes, total_bytes)
                if self._watcher is not None and self._part.nbytes >= self._look_at_bytes:
                    self._look()
        if total_bytes is not None and self._part.nbytes < total_bytes:
            raise ConnectionCutError("the connection broke")

    def _match(self, response: http.client.HTTPResponse) -> int | None:
        """Align part and response at the same position; returns the size of the whole file."""
        ranged = CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
        whole_body = response.status != 206
        total_bytes = body_length(response) if whole_body else int(ranged[3]) if ranged else None
        pairs = (
            (response.headers.get("ETag"), self._remote.etag),
            (response.headers.get("Last-Modified"), self._remote.last_modified),
            (total_bytes, self._remote.nbytes),
        )
        if any(now is not None and before is not None and now != before for now, before in pairs):
            self._part.discard()
            raise DownloadFailed(f"{shown(self._remote.url)} changed on the server during the download; try again")
        if whole_body:
            self._part.restart()
        elif ranged is None or int(ranged[1]) != self._part.nbytes:
            raise DownloadFailed(f"{shown(self._remote.url)}: the server sent another range than was asked for")
        return total_bytes

    def _look(self) -> None:
        if self._watcher is None:
            return
        try:
            seen_enough = self._watcher(self._part.path, self._remote.nbytes)
        except Exception:
            self._part.discard()
            raise
        self._look_at_bytes *= 2
        if seen_enough:
            self._watcher = None

    def _progress_bytes(self) -> int:
        """Bytes a try must receive to count as progress."""
        if self._remote.nbytes is None:
            return self._policy.progress_bytes
        return max(1, min(self._policy.progress_bytes, self._remote.nbytes // 100))

    def _given_up(self, cut: ConnectionCutError) -> DownloadFailed:
        kept = (
            f"{size_text(self._part.nbytes)} are saved, the same command resumes there"
            if self._part.nbytes and self._remote.ranged
            else "nothing was saved, try again later"
        )
        if not self._remote.ranged:
            self._part.discard()
        return DownloadFailed(f"{shown(self._remote.url)}: {cut}, {self._policy.attempts} times in a row; {kept}")
