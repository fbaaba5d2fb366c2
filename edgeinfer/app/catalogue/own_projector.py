"""Whether a model on this machine reads images and sound: its projector, as headers say.

In: a model's path, and where the store has it from. Out: `OwnProjector`, None for models of text alone. Reads no
weights; of the model itself only what tells whether it has its projector in its own file.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edgeinfer.errors import EdgeInferError
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.model_projectors import may_hold_projector, projectors_of
from edgeinfer.models.projector_file import OF_IMAGES, encoders_of, open_projector
from edgeinfer.models.projectors import image_type
from edgeinfer.text_values import size_text


@dataclass(frozen=True, slots=True)
class OwnProjector:
    """The projector of a model, of `nbytes`. `kind`: its type, "" if unknown.

    `why_not`: why it cannot be used, "" if it can; `is_inner`: it is in the model's own file.
    """

    path: Path
    nbytes: int
    kind: str
    why_not: str = ""
    reads_images: bool = False
    reads_sound: bool = False
    is_inner: bool = False

    @property
    def media(self) -> str:
        """What is read with it, for people; "" if nothing is."""
        return ", ".join(word for word, reads in (("images", self.reads_images), ("sound", self.reads_sound)) if reads)

    @property
    def text(self) -> str:
        """What it is, for people."""
        known = f"{self.kind}, " if self.kind else ""
        named = "the projector in its own file" if self.is_inner else self.path.name
        said = f"{named} ({known}{size_text(self.nbytes)})"
        return f"not with {said}: {self.why_not}" if self.why_not else f"with {said}"


def own_projector(path: Path, source: str = "") -> OwnProjector | None:
    """The projector that a model is opened with; else the best one beside it, which cannot be used."""
    found: OwnProjector | None = None
    for beside in projectors_of(path, source):
        seen = _seen(beside)
        if not seen.why_not:
            return seen
        found = found or seen
    return found or (_inner(path) if may_hold_projector(path) else None)


def _seen(path: Path) -> OwnProjector:
    try:
        nbytes = path.stat().st_size
        with open_projector(path) as projector:
            encoders, kind = projector.encoders, projector.facts.kind
            sees, hears = encoders.images is not None, encoders.sound is not None
            return OwnProjector(path, nbytes, kind, reads_images=sees, reads_sound=hears)
    except EdgeInferError as reason:
        return OwnProjector(path, nbytes, "", str(reason))
    except OSError as reason:
        return OwnProjector(path, 0, "", f"it cannot be read: {reason.strerror or reason}")


def _inner(path: Path) -> OwnProjector | None:
    """The projector in a model's own file, if it has one."""
    try:
        with GGUFFile.open(path) as file:
            kind, tensors = image_type(file.metadata), file.tensors
            if kind is None:
                return None
            nbytes = sum(info.nbytes for name, info in tensors.items() if name.startswith(OF_IMAGES))
            try:
                encoders_of(file.metadata, tensors)
            except EdgeInferError as reason:
                return OwnProjector(path, nbytes, kind, str(reason), is_inner=True)
            return OwnProjector(path, nbytes, kind, reads_images=True, is_inner=True)
    except EdgeInferError:
        return None
