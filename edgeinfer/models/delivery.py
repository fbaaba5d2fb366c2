"""The interface between the store and a source.

In and out: plain values. A source is parsed from text, receives a `Pull` and returns a `Delivery`: complete, checked
files, each to be renamed into the store or left in place. Independent of the kinds of sources.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from edgeinfer.errors import DownloadFailed
from edgeinfer.models.download.header import Approve
from edgeinfer.models.download.part import part_path
from edgeinfer.models.download.policy import DownloadPolicy, Progress

Claim = Callable[[str, str], None]
"""Called with a model's name and full source text once they are known. Raises DownloadFailed if the name is taken."""


Parted = Callable[[Path], None]
"""Called with the path of each part before data is written to it."""


def unnoted(path: Path) -> None:
    """A `Parted` that records nothing."""


@dataclass(frozen=True, slots=True)
class Pull:
    """What a source works with: where to put files, and callbacks for progress and approval.

    `looks_only`: only the header is needed.
    """

    folder: Path
    progress: Progress
    approve: Approve
    claim: Claim
    policy: DownloadPolicy
    parted: Parted = unnoted
    looks_only: bool = False

    def part(self, file_name: str, url: str) -> Path:
        """Where to receive the file at an address; the part is recorded for this pull."""
        path = part_path(self.folder, file_name, url)
        self.parted(path)
        return path

    def begin_body(self, where: str) -> None:
        """Called before a body is fetched. Raises DownloadFailed if only the header was needed."""
        if self.looks_only:
            raise DownloadFailed(f"{where}: its server gives no parts of files, so nothing is known before it is here")


@dataclass(frozen=True, slots=True)
class Received:
    """One file of a model, complete and checked."""

    path: Path
    file_name: str  # its name in the store, if it is moved there
    nbytes: int
    sha256: str | None


@dataclass(frozen=True, slots=True)
class Delivery:
    """A model: its files, in shard order."""

    name: str
    source: str
    files: tuple[Received, ...]
    in_place: bool  # True: the files stay in place and are not owned by the store


class ModelSource(Protocol):
    """The origin of one model."""

    @property
    def text(self) -> str:
        """The source as a user would write it."""

    @property
    def key(self) -> str:
        """Equal for sources of the same model, whatever version or form was requested."""

    def fetch(self, pull: Pull) -> Delivery:
        """Fetch the model. Raises DownloadFailed, ModelNotFound, BadGGUF, and what `pull.approve` raises."""


@dataclass(frozen=True, slots=True)
class ListedModel:
    """One of several models that a source offers: its own source text and the total size of its files."""

    source: str
    name: str
    quant: str | None
    nbytes: int
    n_files: int


@dataclass(frozen=True, slots=True)
class SourceKind:
    """One kind of source: how to recognise and parse it.

    `listed` returns the models that one text may refer to; None for kinds whose text always refers to one. Raises
    DownloadFailed, ModelNotFound.
    """

    form: str  # for messages: "hf:USER/REPO[:QUANT]"
    matches: Callable[[str], bool]
    parse: Callable[[str], ModelSource]  # raises ModelNotFound if the text is malformed
    listed: Callable[[str, DownloadPolicy], tuple[ListedModel, ...]] | None = None
