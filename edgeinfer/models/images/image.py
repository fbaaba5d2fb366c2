"""An image as people hand it over: a file, its bytes, a Pillow image or an array.

In: such a value. Out: `Image`, with the name by which results are kept, its size before anything is decoded, and its
pixels when they are asked for.
"""

from __future__ import annotations

import hashlib
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Union

import numpy as np

from edgeinfer.errors import BadImage
from edgeinfer.models.images.decoding import (
    MOST_BYTES,
    ImageHeader,
    decoded,
    header_of,
    pixels_of,
    require_size,
)
from edgeinfer.models.images.orientation import UPRIGHT
from edgeinfer.models.images.resizing import Pixels, PixelSource
from edgeinfer.models.media_file import read_media

if TYPE_CHECKING:
    from PIL.Image import Image as PillowImage

ImageSource = Union["Image", str, os.PathLike[str], bytes, bytearray, memoryview, Pixels, "PillowImage"]


@dataclass(frozen=True, slots=True)
class Image:
    """An image for a model. Images with the same content are equal, whatever their names. Make it by `Image.of`.

    key      hash of the content: of the file's bytes, or of the pixels
    name     for people: the file's name, or "image"
    format   PNG, JPEG, WEBP, GIF, BMP, TIFF, AVIF, or pixels
    size     width and height, upright
    data     the file's bytes; empty for an image made from pixels
    """

    key: str
    name: str = field(compare=False)
    format: str = field(compare=False)
    size: tuple[int, int] = field(compare=False)
    data: bytes = field(compare=False, repr=False)
    _orientation: int = field(default=UPRIGHT, compare=False, repr=False)
    _pixels: Pixels | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, value: ImageSource, name: str = "") -> Image:
        """An image from a path, bytes of a file, a Pillow image, or uint8[H, W, 1 | 3 | 4] (grey, RGB, RGBA).

        The header is read, the pixels are not. `name`: instead of the file's. Raises BadImage for what is none or too
        large, BadSetting where Pillow is missing.
        """
        if isinstance(value, Image):
            return value
        if isinstance(value, (bytes, bytearray, memoryview)):
            return cls._of_file(bytes(value), name or "image")
        if isinstance(value, np.ndarray):
            return cls._of_pixels(_rgb_array(value, name or "image"), name or "image")
        if isinstance(value, (str, os.PathLike)):
            if "://" in str(value) or str(value)[:5].lower() == "data:":
                raise BadImage(f"{str(value)[:60]} is an address, and nothing is fetched; give a path, or the bytes")
            path = Path(value)
            return cls._of_file(read_media(path, MOST_BYTES, BadImage, "images"), name or path.name)
        pillow = sys.modules.get("PIL.Image")
        if pillow is not None and isinstance(value, pillow.Image):
            return cls._of_pixels(pixels_of(value, name or "image"), name or "image")
        raise BadImage(
            f"{type(value).__name__} is no image: give a path, bytes, a Pillow image or uint8[height, width, 3]"
        )

    @classmethod
    def _of_file(cls, data: bytes, name: str) -> Image:
        header = header_of(data, name)
        key = hashlib.blake2b(data, digest_size=16).hexdigest()
        return cls(key, name, header.format, header.size, data, header.orientation)

    @classmethod
    def _of_pixels(cls, pixels: Pixels, name: str) -> Image:
        pixels.setflags(write=False)
        height, width, _ = pixels.shape
        digest = hashlib.blake2b(f"pixels {width} {height} ".encode(), digest_size=16)
        digest.update(pixels.data)
        return cls(digest.hexdigest(), name, "pixels", (width, height), b"", _pixels=pixels)

    def pixels(self) -> Pixels:
        """The pixels, upright, in RGB: uint8[height, width, 3]. Decodes a file anew each time. Raises BadImage."""
        return self.source()[:]

    def source(self) -> PixelSource:
        """The same, of which bands of rows are read. Decodes a file, without a copy of all its pixels."""
        if self._pixels is not None:
            return self._pixels
        return decoded(self.data, ImageHeader(self.format, self.size, self._orientation), self.name)


def _rgb_array(array: np.ndarray[tuple[int, ...], np.dtype[np.generic]], name: str) -> Pixels:
    """An array in RGB, a copy; what is transparent over white, as transformers' processors have it."""
    if array.ndim == 2:
        array = array[..., None]
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] not in (1, 3, 4):
        raise BadImage(f"{name} is {array.dtype}{list(array.shape)}; images are uint8[height, width, 1, 3 or 4]")
    require_size((array.shape[1], array.shape[0]), name)
    pixels = np.empty((*array.shape[:2], 3), np.uint8)
    pixels[:] = array[..., :3]
    if array.shape[2] == 4:
        for row, stored in zip(pixels, array, strict=True):
            alpha = stored[:, 3:] / 255
            row[:] = np.round(alpha * stored[:, :3] + (1 - alpha) * 255)
    return pixels
