"""A .gguf file on a web server; any shard of a split model brings all of its shards.

In: an http(s) address, optionally with ``#sha256=HEX``. Out: a delivery of parts to be renamed into the store. The
header is fetched and approved before the body. Independent of package indexes and model hubs.
"""

from __future__ import annotations

import hashlib
import re
import urllib.parse
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from edgeinfer.errors import BadGGUF, EdgeInferError, ModelNotFound
from edgeinfer.models.delivery import Delivery, Pull, Received, SourceKind
from edgeinfer.models.download.header import HeaderWatch, Readable, beginning_header, file_header, read_header
from edgeinfer.models.download.http import Remote, open_ranged, shown
from edgeinfer.models.download.part import DownloadPart
from edgeinfer.models.download.policy import shifted
from edgeinfer.models.download.transfer import ask, receive
from edgeinfer.models.file_names import model_name, safe_file_name, shard_names
from edgeinfer.models.gguf import Header, HeaderIncomplete

SHA256 = re.compile(r"sha256[=:]([0-9a-fA-F]{64})")


@dataclass(frozen=True, slots=True)
class UrlSource:
    """A model file at an address."""

    url: str  # without fragment
    expected_sha256: str | None

    @property
    def text(self) -> str:
        """The address, without credentials and query."""
        return shown(self.url)

    @property
    def key(self) -> str:
        """The whole address, hashed, because a query may contain a secret."""
        return f"url:{hashlib.sha256(self.url.encode()).hexdigest()}"

    def fetch(self, pull: Pull) -> Delivery:
        """Download every shard. Raises DownloadFailed, BadGGUF, and what `pull.approve` raises."""
        file_name = safe_file_name(urllib.parse.unquote(urllib.parse.urlsplit(self.url).path), self.text)
        pull.claim(model_name(file_name), self.text)
        shards = shard_names(file_name)
        remotes = [ask(self._shard_url(file_name, shard), pull.policy) for shard in shards]
        watch = HeaderWatch(pull.approve, lambda path, total: _header_so_far(path, total, remotes))
        if remotes[0].ranged and remotes[0].nbytes:
            with open_ranged(remotes[0], pull.policy) as stream:
                pull.approve(_whole_header(stream, remotes[0].nbytes, self.text), _model_bytes(remotes))
            watch.decided = True
        pull.begin_body(self.text)
        with ExitStack() as stack:
            parts = [
                stack.enter_context(DownloadPart(pull.part(shard, remote.url), remote, self.expected_sha256))
                for shard, remote in zip(shards, remotes, strict=True)
            ]
            files = self._receive_all(pull, remotes, shards, parts, watch)
            for part in parts:
                part.finish()
        return Delivery(model_name(file_name), self.text, files, in_place=False)

    def _receive_all(
        self, pull: Pull, remotes: list[Remote], shards: tuple[str, ...], parts: list[DownloadPart], watch: HeaderWatch
    ) -> tuple[Received, ...]:
        total_bytes = _model_bytes(remotes)
        files: list[Received] = []
        for shard, remote, part in zip(shards, remotes, parts, strict=True):
            progress = shifted(pull.progress, sum(file.nbytes for file in files), total_bytes)
            later = range(len(files) + 1, len(parts))
            digest = receive(
                remote,
                part,
                pull.policy,
                progress,
                expected_sha256=self.expected_sha256,
                watcher=None if watch.decided else watch,
                besides_bytes=sum((remotes[index].nbytes or 0) - parts[index].nbytes for index in later),
            )
            try:
                header = file_header(part.path)
                if not watch.decided:
                    pull.approve(header, max(total_bytes, part.nbytes))
            except EdgeInferError:
                part.discard()
                raise
            watch.decided = True
            files.append(Received(part.path, shard, part.nbytes, digest))
        return tuple(files)

    def _shard_url(self, file_name: str, shard: str) -> str:
        parts = urllib.parse.urlsplit(self.url)
        if shard == file_name:
            return self.url
        folder = parts.path.rpartition("/")[0]
        return urllib.parse.urlunsplit(parts._replace(path=f"{folder}/{urllib.parse.quote(shard)}"))


def _model_bytes(remotes: list[Remote]) -> int:
    return sum(remote.nbytes or 0 for remote in remotes)


def _whole_header(stream: Readable, nbytes: int, where: str) -> Header:
    try:
        return read_header(stream, nbytes, where)
    except HeaderIncomplete:
        raise BadGGUF(f"{where} ends inside its header; it is truncated, look for another copy") from None


def _header_so_far(path: Path, total_bytes: int | None, remotes: list[Remote]) -> tuple[Header, int] | None:
    """Header and size of the whole model, from the beginning of its first file; None while either is unknown."""
    if total_bytes is None:
        return None
    header = beginning_header(path, total_bytes, shown(remotes[0].url))
    return None if header is None else (header, _model_bytes(remotes))


def _parse(text: str) -> UrlSource:
    url, _, fragment = text.partition("#")
    matched = SHA256.fullmatch(fragment)
    if fragment and matched is None:
        raise ModelNotFound(f"#{fragment}: after the address, only #sha256= and 64 hexadecimal digits may follow")
    if matched is not None and len(shard_names(url.rpartition("/")[2])) > 1:
        raise ModelNotFound(f"{shown(url)} is one of several shards; leave #sha256= away")
    return UrlSource(url, matched[1].lower() if matched else None)


SOURCE = SourceKind("https://…/MODEL.gguf", lambda text: text.lower().startswith(("http://", "https://")), _parse)
