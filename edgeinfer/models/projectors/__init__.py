"""Projector types, one file each: the file name is GGUF's `clip.projector_type`, `PROJECTOR` builds the encoder.

In: `Hyperparameters` of a projector file (`mmproj-….gguf`, architecture `clip`), or of a model's file that has the
tensors inside. Out: an `ImageEncoder`, a `SoundEncoder`, or both. No weights are read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from edgeinfer.errors import BadGGUF, UnsupportedModel
from edgeinfer.models.gguf import Metadata
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.sounds.encoder import SoundEncoder
from edgeinfer.models.vision.encoder import ImageEncoder
from edgeinfer.registry import Registry


@dataclass(frozen=True, slots=True)
class Projector:
    """How to build the encoder of a projector type: of images by `build`, of sound by `sound`.

    `aliases`: other values of `clip.projector_type` for the same type, among them the exact value if it cannot be a
    module name.
    """

    build: Callable[[Hyperparameters], ImageEncoder] | None = None
    aliases: tuple[str, ...] = ()
    sound: Callable[[Hyperparameters], SoundEncoder] | None = None


PROJECTORS: Registry[Projector] = Registry("edgeinfer.models.projectors", "PROJECTOR", "projector type")

ARCHITECTURE = "clip"
"""The architecture of projector files."""
TYPE_KEYS = ("clip.vision.projector_type", "clip.projector_type")
"""Keys of the type; files with encoders of both images and sound have the first."""
SOUND_KEYS = ("clip.audio.projector_type", "clip.projector_type")
"""The same for sound."""
HAS_IMAGES, HAS_SOUND = "clip.has_vision_encoder", "clip.has_audio_encoder"
LLAVA = "mlp"
"""The type of LLaVA's first files, which state none."""


def image_type(metadata: Metadata) -> str | None:
    """The type of the encoder of images that a projector file names; None if it names none."""
    if metadata.flag(HAS_SOUND, False) and not metadata.flag(HAS_IMAGES, False):
        return None
    found = next((metadata.text(key) for key in TYPE_KEYS if key in metadata), None)
    return LLAVA if found is None and metadata.flag(f"{ARCHITECTURE}.has_llava_projector", False) else found


def sound_type(metadata: Metadata) -> str | None:
    """The same for sound."""
    if not metadata.flag(HAS_SOUND, False):
        return None
    return next((metadata.text(key) for key in SOUND_KEYS if key in metadata), None)


def type_of(metadata: Metadata) -> str | None:
    """The type of the encoder of images, else of the one of sound."""
    return image_type(metadata) or sound_type(metadata)


def is_known(kind: str) -> bool:
    """Whether there is an encoder of images of this type."""
    found = _entry(kind)
    return found is not None and found.build is not None


def _entry(kind: str) -> Projector | None:
    if kind in PROJECTORS:
        return PROJECTORS.get(kind)
    return next((entry for entry in PROJECTORS.entries().values() if kind in entry.aliases), None)


def image_encoder(hp: Hyperparameters) -> ImageEncoder | None:
    """The encoder of images of a file; None if it has none.

    Raises UnsupportedModel with a list, BadGGUF for a file that is no projector.
    """
    found = image_type(hp.metadata)
    if found is None:
        if sound_type(hp.metadata) is None:
            raise BadGGUF(f"the file has no {TYPE_KEYS[-1]}: it is no projector file (mmproj)")
        return None
    entry = _entry(found)
    if entry is None or entry.build is None:
        names = ", ".join(sorted(key for key, each in PROJECTORS.entries().items() if each.build is not None))
        raise UnsupportedModel(f"the projector's type is {found[:80]!r}; edgeinfer has: {names}")
    return entry.build(hp)


def sound_encoder(hp: Hyperparameters) -> SoundEncoder | None:
    """The encoder of sound of a file; None if it has none. Raises UnsupportedModel with a list, BadGGUF."""
    found = sound_type(hp.metadata)
    if found is None:
        return None
    entry = _entry(found)
    if entry is None or entry.sound is None:
        names = ", ".join(sorted(key for key, each in PROJECTORS.entries().items() if each.sound is not None))
        raise UnsupportedModel(f"the type of its encoder of sound is {found[:80]!r}; edgeinfer has: {names}")
    return entry.sound(hp)
