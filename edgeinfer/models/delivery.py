"""What the store and a source say to each other.

In and out: plain values. A source is parsed from text, is handed a `Pull` and gives back a `Delivery`: files that are
whole and checked, each either to be renamed into the store or left in its place. Knows no kind of source.
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
"""Called with a model's name and full source text once they are known; raises DownloadFailed when the name is taken."""


Parted = Callable[[Path], None]
"""Called with the path of each part before it is received into."""


def unnoted(path: Path) -> None:
    """A `Parted` that keeps no note."""


@dataclass(frozen=True, slots=True)
class Pull:
    """What a source works with: where to put files, whom to tell, whom to ask.

    `looks_only`: nothing but the header is wanted.
    """

    folder: Path
    progress: Progress
    approve: Approve
    claim: Claim
    policy: DownloadPolicy
    parted: Parted = unnoted
    looks_only: bool = False

    def part(self, file_name: str, url: str) -> Path:
        """Where to receive the file at an address, noted as a part of this pull."""
        path = part_path(self.folder, file_name, url)
        self.parted(path)
        return path

    def begin_body(self, where: str) -> None:
        """To be called before a body is fetched. Raises DownloadFailed where only the header was wanted."""
        if self.looks_only:
            raise DownloadFailed(f"{where}: its server gives no parts of files, so nothing is known before it is here")


@dataclass(frozen=True, slots=True)
class Received:
    """One file of a model, whole and checked."""

    path: Path
    file_name: str  # its name in the store, when it is moved there
    nbytes: int
    sha256: str | None


@dataclass(frozen=True, slots=True)
class Delivery:
    """A model: its files, in the order of shards."""

    name: str
    source: str
    files: tuple[Received, ...]
    in_place: bool  # True: the files stay where they are and belong to someone else


class ModelSource(Protocol):
    """Where one model comes from."""

    @property
    def text(self) -> str:
        """The source as a person would write it."""

    @property
    def key(self) -> str:
        """Equal for equal sources, whatever version or form was asked for."""

    def fetch(self, pull: Pull) -> Delivery:
        """Bring the model here. Raises DownloadFailed, ModelNotFound, BadGGUF, and what `pull.approve` raises."""


@dataclass(frozen=True, slots=True)
class ListedModel:
    """One of several models that a source offers: its own text, the size of all of its files."""

    source: str
    name: str
    quant: str | None
    nbytes: int
    n_files: int


@dataclass(frozen=True, slots=True)
class SourceKind:
    """One kind of source: what it looks like, and how it is read.

    `listed` gives the models that one text may mean; None where a text always means one. Raises DownloadFailed,
    ModelNotFound.
    """

    form: str  # for messages: "hf:USER/REPO[:QUANT]"
    matches: Callable[[str], bool]
    parse: Callable[[str], ModelSource]  # raises ModelNotFound when the text is malformed
    listed: Callable[[str, DownloadPolicy], tuple[ListedModel, ...]] | None = None
