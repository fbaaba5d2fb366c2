"""Images sent with messages, as chats keep them: the bytes of their files and a small picture of each.

In: the bytes of a file. Out: `KeptImage`, which needs the original file no more. An image is decoded once, when it is
attached: so what cannot be read is told before it is sent, and its preview can be drawn at any time without a decoder.
Knows neither the database nor a screen.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from edgeinfer.app.image_files import data_url
from edgeinfer.errors import EdgeInferError

if TYPE_CHECKING:
    from edgeinfer.models.images.image import Image
    from edgeinfer.models.images.resizing import Pixels

PREVIEW_PIXELS = (24, 16)
"""Largest width and height of a preview: 24 cells by 8 lines of a terminal, with two pixels in each cell."""
_SPARE = 8
"""Pixels of an image for each one of its preview, before they are averaged."""


@dataclass(frozen=True, slots=True)
class Preview:
    """A small picture: `rgb` has three bytes for each pixel, row by row."""

    width: int
    rgb: bytes

    @property
    def height(self) -> int:
        """Its rows."""
        return len(self.rgb) // (3 * self.width) if self.width > 0 else 0

    def pixel(self, row: int, column: int) -> tuple[int, int, int]:
        """The red, green and blue of a pixel."""
        at = 3 * (row * self.width + column)
        red, green, blue = self.rgb[at : at + 3]
        return red, green, blue


@dataclass(frozen=True)
class KeptImage:
    """An image sent with a message. Images with the same bytes are equal.

    digest   names the bytes
    data     the bytes of its file
    size     width and height in pixels, upright
    preview  a small picture of it
    """

    digest: str
    data: bytes = field(compare=False, repr=False)
    size: tuple[int, int] = field(compare=False)
    preview: Preview = field(compare=False, repr=False)

    @cached_property
    def part(self) -> Image | bytes:
        """The image for the model; its bytes if it cannot be opened here, so that the model's side says why."""
        from edgeinfer.models.images.image import Image

        try:
            return Image.of(self.data)
        except EdgeInferError:
            return self.data

    def picture(self, most: tuple[int, int]) -> Preview:
        """The image, as large as fits into a width and height in pixels. Decodes it. Raises BadImage, BadSetting."""
        from edgeinfer.models.images.image import Image

        return _picture(Image.of(self.data).pixels(), most)

    @property
    def pixels_text(self) -> str:
        """Its size for people: "640 × 480"."""
        return f"{self.size[0]} × {self.size[1]}"

    @property
    def url(self) -> str:
        """The image as a data URL."""
        part = self.part
        return data_url(self.data, "PNG" if isinstance(part, bytes) else part.format)


def kept_image(data: bytes, name: str) -> KeptImage:
    """The image in a file's bytes. `name`: for messages. Raises BadImage, BadSetting where Pillow is missing."""
    from edgeinfer.models.images.image import Image

    image = Image.of(data, name)
    preview = _picture(image.pixels(), PREVIEW_PIXELS)
    return KeptImage(hashlib.blake2b(data, digest_size=16).hexdigest(), data, image.size, preview)


def _picture(pixels: Pixels, most: tuple[int, int]) -> Preview:
    from edgeinfer.models.images.resizing import resized

    height, width, _ = pixels.shape
    scale = min(most[0] / width, most[1] / height)
    small = max(1, round(height * scale)), max(1, round(width * scale))
    step = max(1, int(1 / (scale * _SPARE)))
    return Preview(small[1], resized(pixels[::step, ::step].copy(), small, "bilinear").tobytes())
