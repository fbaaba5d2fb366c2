"""Projector files (`mmproj-….gguf`): opening one, and checking that its encoder reads all that it holds.

In: a path, or a header. Out: a `ProjectorFile`, or `ProjectorFacts` that need no open file. Reads no weights.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from edgeinfer.errors import BadGGUF, UnsupportedModel
from edgeinfer.models.gguf import GGUFFile, Metadata, TensorInfo
from edgeinfer.models.gguf.adapter import TRANSPOSED
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.projectors import ARCHITECTURE, projector_of, type_of
from edgeinfer.models.quants import format_of
from edgeinfer.models.vision.encoder import ImageEncoder

OF_IMAGES = ("v.", "mm.")
"""How the names of a projector's tensors begin."""
OF_SOUND = r"a\..*|mm\.a\..*"
"""Tensors of sound encoders, which files may hold beside those of images."""


@dataclass(frozen=True, slots=True)
class ProjectorFacts:
    """What a header says of an encoder. `kind`: the projector's type; `title`: the name in the header, or ""."""

    encoder: ImageEncoder
    tensors: Mapping[str, TensorInfo]
    kind: str
    title: str
    file_name: str


@dataclass(frozen=True, slots=True)
class ProjectorFile:
    """An open file with its encoder; closing it closes the file."""

    file: GGUFFile
    encoder: ImageEncoder

    @property
    def facts(self) -> ProjectorFacts:
        """What its header says."""
        return _facts(self.encoder, self.file.metadata, self.file.tensors, self.file.path.name)

    def close(self) -> None:
        """Close the file."""
        self.file.close()

    def __enter__(self) -> ProjectorFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_projector(path: str | Path) -> ProjectorFile:
    """Open a projector file. Raises ModelNotFound, BadGGUF, UnsupportedModel."""
    file = GGUFFile.open(path)
    try:
        return ProjectorFile(file, encoder_of(file.metadata, file.tensors))
    except BaseException:
        file.close()
        raise


def has_projector(metadata: Metadata) -> bool:
    """Whether a header is that of a projector file, or of a model's file with a projector in it."""
    return type_of(metadata) is not None


def facts_of(metadata: Metadata, tensors: Mapping[str, TensorInfo], file_name: str) -> ProjectorFacts:
    """What a projector file's header says. Raises BadGGUF, UnsupportedModel."""
    return _facts(encoder_of(metadata, tensors), metadata, tensors, file_name)


def _facts(
    encoder: ImageEncoder, metadata: Metadata, tensors: Mapping[str, TensorInfo], file_name: str
) -> ProjectorFacts:
    kind = type_of(metadata) or ""
    return ProjectorFacts(encoder, tensors, kind, metadata.text("general.name", ""), file_name)


def encoder_of(metadata: Metadata, tensors: Mapping[str, TensorInfo]) -> ImageEncoder:
    """The encoder that a projector file's header describes. Raises BadGGUF, UnsupportedModel."""
    architecture = metadata.text("general.architecture")
    if architecture != ARCHITECTURE:
        if not has_projector(metadata):
            raise BadGGUF(f"the file's architecture is {architecture[:80]!r}: it is no projector file (mmproj)")
        metadata = metadata.changed({}, {"general.architecture": ARCHITECTURE})
        tensors = {name: info for name, info in tensors.items() if name.startswith(OF_IMAGES)}
    encoder = projector_of(Hyperparameters(metadata, tensors, 0)).build(Hyperparameters(metadata, tensors, 0))
    _check_tensors(encoder, tensors)
    return encoder


def _check_tensors(encoder: ImageEncoder, tensors: Mapping[str, TensorInfo]) -> None:
    """Raises UnsupportedModel for a tensor that is read but has no supported format, or that nothing reads."""
    weights = (weight for graph in encoder.graphs for weight in graph.weights())
    names = {weight.tensor for weight in (*weights, *encoder.tables)}
    names |= {name.removesuffix(TRANSPOSED) for name in names}
    unread = re.compile(f"{OF_SOUND}|{encoder.unread or '$.'}")
    for name, info in tensors.items():
        if name in names:
            try:
                format_of(info.ggml_type)
            except UnsupportedModel as error:
                raise UnsupportedModel(f"{name}: {error}") from None
        elif not unread.fullmatch(name):
            raise UnsupportedModel(
                f"the file has a tensor {name[:80]!r} that edgeinfer's encoder does not use: it is a variant, and "
                "what the model sees without that tensor would be wrong"
            )
