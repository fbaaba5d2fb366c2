"""What the store and a source say to each other.

In and out: plain values. A source is parsed from text, is handed a `Pull` and gives back a `Delivery`: files that are
whole and checked, each either to be renamed into the store or left in its place. Knows no kind of source.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from edgeinfer.models.download.header import Approve
from edgeinfer.models.download.policy import Policy, Progress

Claim = Callable[[str, str], None]
"""Called with a model's name and full source text once they are known; raises DownloadFailed when the name is taken."""


@dataclass(frozen=True, slots=True)
class Pull:
    """What a source works with: where to put files, whom to tell, whom to ask."""

    folder: Path
    progress: Progress
    approve: Approve
    claim: Claim
    policy: Policy


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


class Source(Protocol):
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
class SourceKind:
    """One kind of source: what it looks like, and how it is read."""

    form: str  # for messages: "hf:USER/REPO[:QUANT]"
    matches: Callable[[str], bool]
    parse: Callable[[str], Source]  # raises ModelNotFound when the text is malformed
