"""Inspecting a remote model: its header, without its body.

In: a source's text. Out: `HeaderLook`, or why there is none. Stores nothing on this machine.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from edgeinfer.errors import BadGGUF, EdgeInferError
from edgeinfer.models.delivery import ListedModel, Pull
from edgeinfer.models.download.header import file_header
from edgeinfer.models.download.policy import DownloadPolicy, silent
from edgeinfer.models.file_facts import quant_name
from edgeinfer.models.file_names import quant_of
from edgeinfer.models.gguf import Header
from edgeinfer.models.model_projectors import projectors_of
from edgeinfer.models.sources import SOURCES, parse_source
from edgeinfer.temporary import temporary_folder


@dataclass(frozen=True, slots=True)
class HeaderLook:
    """What a header says about a model. `source` in full, `nbytes` of all files."""

    name: str
    source: str
    header: Header
    nbytes: int

    @property
    def n_files(self) -> int:
        """Number of shards. With several, the header lists the tensors of the first only."""
        return max(1, self.header.metadata.integer("split.count", 1))

    @property
    def quant(self) -> str | None:
        """Its quant format."""
        return quant_of(self.name) or quant_name(self.header)


class _Seen(EdgeInferError):
    """Ends a pull once the header has been read."""

    def __init__(self, header: Header, nbytes: int) -> None:
        super().__init__("the header is there")
        self.header, self.nbytes = header, nbytes


def look(source: str, policy: DownloadPolicy | None = None) -> HeaderLook:
    """Read the header of the model that `source` refers to. Raises DownloadFailed, ModelNotFound, BadGGUF."""
    claimed: list[tuple[str, str]] = []

    def see(header: Header, nbytes: int) -> None:
        raise _Seen(header, nbytes)

    with temporary_folder("edgeinfer-look") as folder:
        pull = Pull(
            Path(folder),
            silent,
            see,
            lambda name, text: claimed.append((name, text)),
            policy or DownloadPolicy(),
            looks_only=True,
        )
        try:
            delivery = parse_source(source).fetch(pull)
        except _Seen as seen:
            name, text = claimed[-1] if claimed else (source, source)
            return HeaderLook(name, text, seen.header, seen.nbytes)
        nbytes, path = sum(file.nbytes for file in delivery.files), delivery.files[0].path
        return HeaderLook(delivery.name, delivery.source, _with_projector(file_header(path), path), nbytes)


def _with_projector(header: Header, path: Path) -> Header:
    """The header of a file that is here, with that of the projector beside it, if there is one."""
    for beside in projectors_of(path)[:1]:
        with suppress(BadGGUF):
            return replace(header, projector=file_header(beside))
    return header


def listed(source: str, policy: DownloadPolicy | None = None) -> tuple[ListedModel, ...]:
    """The models that `source` offers, with their files and quants; reads the header if a source means a single one.

    Raises DownloadFailed, ModelNotFound, BadGGUF.
    """
    parse_source(source)
    for kind in SOURCES.entries().values():
        if kind.matches(source.strip()):
            if kind.listed is not None:
                return kind.listed(source.strip(), policy or DownloadPolicy())
            break
    found = look(source, policy)
    return (ListedModel(source.strip(), found.name, found.quant, found.nbytes, found.n_files),)
