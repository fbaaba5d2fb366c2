"""Projector files (`mmproj-….gguf`): opening one, and checking that its encoders read all that it holds.

In: a path, or a header. Out: a `ProjectorFile`, or `ProjectorFacts` that need no open file. Reads no weights.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from edgeinfer.errors import BadGGUF, EdgeInferError, UnsupportedModel
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.gguf import GGUFFile, Metadata, TensorInfo
from edgeinfer.models.gguf.adapter import TRANSPOSED
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.projectors import ARCHITECTURE, image_encoder, sound_encoder, type_of
from edgeinfer.models.quants import format_of
from edgeinfer.models.sounds.encoder import SoundEncoder
from edgeinfer.models.vision.encoder import Encoder, ImageEncoder

OF_IMAGES = ("v.", "mm.")
"""How the names of a projector's tensors begin."""
OF_SOUND = r"a\..*|mm\.a\..*"
"""Tensors of sound encoders, which files may hold beside those of images."""


@dataclass(frozen=True, slots=True)
class Encoders:
    """The encoders of a projector file. `no_sound`: why that of sound is left out, "" if it is not."""

    images: ImageEncoder | None
    sound: SoundEncoder | None
    no_sound: str = ""

    @property
    def of_images(self) -> ImageEncoder:
        """That of images. Raises UnsupportedModel if there is none."""
        if self.images is None:
            raise UnsupportedModel("the projector reads sound, not images")
        return self.images

    @property
    def all(self) -> tuple[Encoder, ...]:
        """One or both."""
        return tuple(each for each in (self.images, self.sound) if each is not None)

    @property
    def graphs(self) -> tuple[ModelSpec, ...]:
        """The graphs of all."""
        return tuple(graph for each in self.all for graph in each.graphs)

    @property
    def width(self) -> int:
        """Numbers in a row of the language model."""
        return self.all[0].width


@dataclass(frozen=True, slots=True)
class ProjectorFacts:
    """What a header says of encoders. `kind`: the projector's type; `title`: the name in the header, or ""."""

    encoders: Encoders
    tensors: Mapping[str, TensorInfo]
    kind: str
    title: str
    file_name: str

    @property
    def encoder(self) -> ImageEncoder:
        """The encoder of images, of a file that has one. Raises UnsupportedModel."""
        return self.encoders.of_images


@dataclass(frozen=True, slots=True)
class ProjectorFile:
    """An open file with its encoders; closing it closes the file."""

    file: GGUFFile
    encoders: Encoders

    @property
    def encoder(self) -> ImageEncoder:
        """The encoder of images, of a file that has one. Raises UnsupportedModel."""
        return self.encoders.of_images

    @property
    def facts(self) -> ProjectorFacts:
        """What its header says."""
        return _facts(self.encoders, self.file.metadata, self.file.tensors, self.file.path.name)

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
        return ProjectorFile(file, encoders_of(file.metadata, file.tensors))
    except BaseException:
        file.close()
        raise


def has_projector(metadata: Metadata) -> bool:
    """Whether a header is that of a projector file, or of a model's file with a projector in it."""
    return type_of(metadata) is not None


def facts_of(metadata: Metadata, tensors: Mapping[str, TensorInfo], file_name: str) -> ProjectorFacts:
    """What a projector file's header says. Raises BadGGUF, UnsupportedModel."""
    return _facts(encoders_of(metadata, tensors), metadata, tensors, file_name)


def _facts(encoders: Encoders, metadata: Metadata, tensors: Mapping[str, TensorInfo], file_name: str) -> ProjectorFacts:
    kind = type_of(metadata) or ""
    return ProjectorFacts(encoders, tensors, kind, metadata.text("general.name", ""), file_name)


def encoders_of(metadata: Metadata, tensors: Mapping[str, TensorInfo]) -> Encoders:
    """The encoders that a projector file's header describes. Raises BadGGUF, UnsupportedModel.

    One of sound that edgeinfer does not run is left out if there is one of images.
    """
    architecture = metadata.text("general.architecture")
    if architecture != ARCHITECTURE:
        if not has_projector(metadata):
            raise BadGGUF(f"the file's architecture is {architecture[:80]!r}: it is no projector file (mmproj)")
        metadata = metadata.changed({}, {"general.architecture": ARCHITECTURE})
        tensors = {name: info for name, info in tensors.items() if name.startswith(OF_IMAGES)}
    hp = Hyperparameters(metadata, tensors, 0)
    images = image_encoder(hp)
    ours = {name: info for name, info in tensors.items() if images is None or re.fullmatch(OF_SOUND, name)}
    if images is not None:
        _check_tensors(images, {name: info for name, info in tensors.items() if name not in ours})
    try:
        sound = sound_encoder(hp)
        if sound is not None:
            _check_tensors(sound, ours)
    except EdgeInferError as reason:
        if images is None:
            raise
        return Encoders(images, None, str(reason))
    return Encoders(images, sound)


def _check_tensors(encoder: Encoder, tensors: Mapping[str, TensorInfo]) -> None:
    """Raises UnsupportedModel for a tensor that is read but has no supported format, or that nothing reads."""
    weights = [weight for graph in encoder.graphs for weight in graph.weights()]
    names = {weight.tensor for weight in (*weights, *encoder.tables)}
    names |= {name.removesuffix(TRANSPOSED) for name in names}
    unread = re.compile(encoder.unread or "$.")
    for name, info in tensors.items():
        if name in names:
            try:
                format_of(info.ggml_type)
            except UnsupportedModel as error:
                raise UnsupportedModel(f"{name}: {error}") from None
        elif not unread.fullmatch(name):
            raise UnsupportedModel(
                f"the file has a tensor {name[:80]!r} that edgeinfer's encoder does not use: it is a variant, and "
                "what the model reads without that tensor would be wrong"
            )
