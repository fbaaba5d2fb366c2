"""Which requests have images or sound, and which models read them.

In: where a request has its first image and its first sound; an open model, or the files of one that is not open. Out:
APIError for what the model does not read, before it is loaded if that is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from edgeinfer.app.server.errors import APIError

if TYPE_CHECKING:
    from edgeinfer.app.server.pooled_model import PooledModel
    from edgeinfer.load_options import LoadOptions
    from edgeinfer.models.store import LocalModel

NO_RETRY: Mapping[str, str] = MappingProxyType({"x-should-retry": "false"})
_NEEDS = (
    "that takes a projector file (mmproj-….gguf) that edgeinfer runs, beside the model or named by `edgeinfer serve "
    "--mmproj`, and the cpu"
)


@dataclass(frozen=True, slots=True)
class MediaPlaces:
    """Where a request has its first image and its first sound; None: it has none. False if it has neither."""

    image: str | None = None
    sound: str | None = None

    def __bool__(self) -> bool:
        return self.image is not None or self.sound is not None


NO_MEDIA = MediaPlaces()


@dataclass(frozen=True, slots=True)
class MediaRead:
    """What a model reads besides text."""

    images: bool
    sound: bool

    def require(self, media: MediaPlaces, name: str) -> None:
        """Raises APIError for what the model of a name does not read, which clients are not to send again."""
        if media.image is not None and not self.images:
            message = f"{name} reads no images: {_NEEDS}; leave the image out, or choose a model that sees"
            raise APIError(400, message, "image_input_not_supported", media.image, NO_RETRY)
        if media.sound is not None and not self.sound:
            message = f"{name} reads no sound: {_NEEDS}; leave the sound out, or choose a model that hears"
            raise APIError(400, message, "audio_input_not_supported", media.sound, NO_RETRY)


def media_read(pooled: PooledModel) -> MediaRead:
    """What an open model reads."""
    return MediaRead(pooled.llm.info.reads_images, pooled.llm.info.reads_sound)


def may_read(model: LocalModel, load: LoadOptions) -> MediaRead:
    """What a model may read, as far as that is known before it is loaded."""
    from edgeinfer.engine.opening.seeing import may_hear, may_see

    own = model.path, load, model.source
    return MediaRead(may_see(*own), may_hear(*own))
