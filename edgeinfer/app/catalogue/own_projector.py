"""Whether a model on this machine reads images and sound: its projector file, as its header says.

In: a model's path, and where the store has it from. Out: `OwnProjector`, None for models of text alone. Reads no
weights, and nothing of the model itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edgeinfer.errors import EdgeInferError
from edgeinfer.models.model_projectors import projectors_of
from edgeinfer.models.projector_file import open_projector
from edgeinfer.text_values import size_text


@dataclass(frozen=True, slots=True)
class OwnProjector:
    """The projector of a model. `kind`: its type, "" if unknown; `why_not`: why it cannot be used, "" if it can."""

    path: Path
    nbytes: int
    kind: str
    why_not: str = ""
    reads_images: bool = False
    reads_sound: bool = False

    @property
    def media(self) -> str:
        """What is read with it, for people; "" if nothing is."""
        return ", ".join(word for word, reads in (("images", self.reads_images), ("sound", self.reads_sound)) if reads)

    @property
    def text(self) -> str:
        """What it is, for people."""
        known = f"{self.kind}, " if self.kind else ""
        said = f"{self.path.name} ({known}{size_text(self.nbytes)})"
        return f"not with {said}: {self.why_not}" if self.why_not else f"with {said}"


def own_projector(path: Path, source: str = "") -> OwnProjector | None:
    """The projector that a model is opened with; else the best one beside it, which cannot be used."""
    found: OwnProjector | None = None
    for beside in projectors_of(path, source):
        seen = _seen(beside)
        if not seen.why_not:
            return seen
        found = found or seen
    return found


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
