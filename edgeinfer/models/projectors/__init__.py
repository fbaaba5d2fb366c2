"""Projector types, one file each: the file name is GGUF's `clip.projector_type`, `PROJECTOR` builds the encoder.

In: `Hyperparameters` of a projector file (`mmproj-….gguf`, architecture `clip`), or of a model's file that has the
tensors inside. Out: an `ImageEncoder`. No weights are read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from edgeinfer.errors import BadGGUF, UnsupportedModel
from edgeinfer.models.gguf import Metadata
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.vision.encoder import ImageEncoder
from edgeinfer.registry import Registry


@dataclass(frozen=True, slots=True)
class Projector:
    """How to build the encoder of a projector type.

    `aliases`: other values of `clip.projector_type` for the same type, among them the exact value if it cannot be a
    module name.
    """

    build: Callable[[Hyperparameters], ImageEncoder]
    aliases: tuple[str, ...] = ()


PROJECTORS: Registry[Projector] = Registry("edgeinfer.models.projectors", "PROJECTOR", "projector type")

ARCHITECTURE = "clip"
"""The architecture of projector files."""
TYPE_KEYS = ("clip.vision.projector_type", "clip.projector_type")
"""Keys of the type; files with encoders of both images and sound have the first."""
LLAVA = "mlp"
"""The type of LLaVA's first files, which state none."""


def type_of(metadata: Metadata) -> str | None:
    """The type that a projector file names; None if it names none."""
    found = next((metadata.text(key) for key in TYPE_KEYS if key in metadata), None)
    return LLAVA if found is None and metadata.flag(f"{ARCHITECTURE}.has_llava_projector", False) else found


def is_known(kind: str) -> bool:
    """Whether there is a projector of this type."""
    return kind in PROJECTORS or any(kind in entry.aliases for entry in PROJECTORS.entries().values())


def projector_of(hp: Hyperparameters) -> Projector:
    """The projector of a file. Raises UnsupportedModel with a list, BadGGUF for a file that is no projector."""
    found = type_of(hp.metadata)
    if found is None:
        raise BadGGUF(f"the file has no {TYPE_KEYS[-1]}: it is no projector file (mmproj)")
    if found in PROJECTORS:
        return PROJECTORS.get(found)
    entries = PROJECTORS.entries()
    for entry in entries.values():
        if found in entry.aliases:
            return entry
    names = ", ".join(sorted(entries))
    raise UnsupportedModel(f"the projector's type is {found[:80]!r}; edgeinfer has: {names}")
