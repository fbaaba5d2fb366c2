"""Decodes image files with Pillow; hostile ones are refused before anything large is computed or kept.

In: the bytes of a file. Out: its header; its pixels, upright and in RGB, all or bands of rows. Limits hold before
pixels are decoded: on bytes, on pixels, and on how often and how much a decoder reads, which stops those that are sent
in circles by chunks, tags or blocks. The first frame of an animation counts. One image is decoded at a time. Pillow is
imported with the first file. Knows no models.
"""

from __future__ import annotations

import ctypes
import io
import logging
import struct
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from edgeinfer.errors import BadImage, BadSetting
from edgeinfer.models.images.orientation import SIDEWAYS, UPRIGHT, as_stored, orientation_of, stored_start
from edgeinfer.models.images.resizing import Pixels

if TYPE_CHECKING:
    from PIL.Image import Image as PillowImage

MOST_BYTES = 64 << 20
"""Size of the largest file."""
MOST_PIXELS = 50_000_000
"""Most pixels of an image: cameras of phones have 48 million. A decoder takes 4 bytes for each, for progressive JPEG 3
to 6 more; all pixels at once take another 3."""
MOST_WEBP_PIXELS = 24_000_000
"""The same of WebP, whose decoder takes 16 bytes for each."""
HEADER_BYTES, HEADER_READS = 16 << 20, 20_000
"""What a decoder may read before it knows the size; real files have up to some megabytes of metadata there."""
TIFF_HEADER_BYTES = 2 << 20
"""The same of TIFF, each of whose numbers becomes an object."""
PIXEL_READS = 150_000
"""How often a decoder may read for the pixels; it may read everything twice."""
MOST_CHUNKS = 100_000
"""Most chunks of a PNG that are searched for its orientation."""
MOST_ALONG = 65_535
"""Most pixels along an edge, as many as a JPEG can have."""
STRIP_PIXELS = 1 << 20
"""Pixels that are converted to RGB at a time."""

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")
READABLE = "PNG, JPEG, WebP, GIF, BMP, TIFF or AVIF"
_BEGINNINGS = (
    (b"\x89PNG\r\n\x1a\n", "PNG"),
    (b"\xff\xd8\xff", "JPEG"),
    (b"GIF87a", "GIF"),
    (b"GIF89a", "GIF"),
    (b"BM", "BMP"),
    (b"II*\x00", "TIFF"),
    (b"MM\x00*", "TIFF"),
    (b"II+\x00", "TIFF"),
    (b"MM\x00+", "TIFF"),
)
_OTHER_BEGINNINGS = (
    (b"<svg", "SVG"),
    (b"<?xml", "XML, maybe SVG"),
    (b"<!doctype", "a web page"),
    (b"<html", "a web page"),
    (b"%pdf", "PDF"),
)
_DECODING = threading.Lock()
"""Filters of warnings belong to the process, and one large image at a time is enough for its memory."""
_NOWHERE = logging.NullHandler()


@dataclass(frozen=True, slots=True)
class ImageHeader:
    """What is known before decoding. `size`: width and height, upright; `orientation`: what is still to be applied."""

    format: str
    size: tuple[int, int]
    orientation: int


def header_of(data: bytes, name: str) -> ImageHeader:
    """The header of an image file. Raises BadImage, and BadSetting without Pillow. `name`: for messages."""
    if len(data) > MOST_BYTES:
        raise BadImage(f"{name} has {len(data) / 1e6:.0f} MB; images may have up to {MOST_BYTES / 1e6:.0f} MB")
    form = _format_of(data, name)
    n_bytes = {"WEBP": MOST_BYTES, "AVIF": MOST_BYTES, "TIFF": TIFF_HEADER_BYTES}.get(form, HEADER_BYTES)
    with _guarded(name), _opened(data, form, n_bytes, HEADER_READS) as image:
        size, orientation = image.size, UPRIGHT
        require_size(size, name, MOST_WEBP_PIXELS if form == "WEBP" else MOST_PIXELS)
        if form == "TIFF":  # whose decoder applies the orientation
            _require_tiles(image, name)
        else:
            orientation = _orientation(image, data)
    return ImageHeader(form, size[::-1] if orientation in SIDEWAYS else size, orientation)


def decoded(data: bytes, header: ImageHeader, name: str) -> DecodedImage:
    """An image file, decoded. Raises BadImage."""
    with _guarded(name), _opened(data, header.format, 2 * len(data) + HEADER_BYTES, PIXEL_READS) as image:
        image.load()
        return DecodedImage(image, header.orientation, name)


def pixels_of(image: PillowImage, name: str) -> Pixels:
    """The pixels of a Pillow image, upright: uint8[H, W, 3]. Raises BadImage."""
    require_size(image.size, name)
    with _guarded(name):
        image.load()
        exif, xmp = (image.info.get(key) for key in ("exif", "xmp"))
        orientation = orientation_of(*(block if isinstance(block, bytes) else b"" for block in (exif, xmp)))
    return DecodedImage(image, orientation, name)[:]


class DecodedImage:
    """What a decoder made of an image: a source of upright rows in RGB, so that no second image need be in memory."""

    def __init__(self, image: PillowImage, orientation: int, name: str) -> None:
        self._image, self._orientation, self._name = image, orientation, name

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and 3, upright."""
        width, height = self._image.size
        return (width, height, 3) if self._orientation in SIDEWAYS else (height, width, 3)

    def __getitem__(self, rows: slice, /) -> Pixels:
        """Consecutive rows: uint8[n, W, 3]. Raises BadImage."""
        first, stop, _ = rows.indices(self.shape[0])
        upright = np.empty((stop - first, *self.shape[1:]), np.uint8)
        stored = as_stored(upright, self._orientation)
        left, top = stored_start((first, stop), self._image.size, self._orientation)
        with _guarded(self._name):
            self._copy(stored, left, top)
        return upright

    def _copy(self, stored: Pixels, left: int, top: int) -> None:
        """Copy a part of the image as it is stored, converted strip by strip."""
        height, width, _ = stored.shape
        step = max(STRIP_PIXELS // max(width, 1), 1)
        for first in range(0, height, step):
            stop = min(first + step, height)
            part = self._image.crop((left, top + first, left + width, top + stop))
            stored[first:stop] = np.asarray(_converted(part))


def require_size(size: tuple[int, int], name: str, most: int = MOST_PIXELS) -> None:
    """Raises BadImage for an image without pixels or with too many. `size`: width and height."""
    width, height = size
    if width < 1 or height < 1:
        raise BadImage(f"{name} has no pixels")
    if max(width, height) > MOST_ALONG:
        raise BadImage(f"{name} has {width} x {height} pixels; images may have up to {MOST_ALONG} along an edge")
    if width * height > most:
        own = f"{width * height / 1e6:.0f} million"
        raise BadImage(
            f"{name} has {width} x {height} pixels, {own}; such images may have up to {most // 1_000_000} million"
        )


class _ReadTooMuch(Exception):
    """A decoder went on reading beyond its limits."""


class _LimitedFile(io.BytesIO):
    """A file in memory that may be read only so often and so much."""

    def __init__(self, data: bytes, n_bytes: int, n_reads: int) -> None:
        super().__init__(data)
        self._n_bytes, self._n_reads = n_bytes, n_reads

    def read(self, size: int | None = -1, /) -> bytes:
        found = super().read(size)
        self._n_bytes -= len(found)
        self._n_reads -= 1
        if min(self._n_bytes, self._n_reads) < 0:
            raise _ReadTooMuch("its parts are too many or too large")
        return found


@contextmanager
def _opened(data: bytes, form: str, n_bytes: int, n_reads: int) -> Iterator[PillowImage]:
    """A file opened by the decoder of its format, and by no other."""
    try:
        import PIL.Image
        from PIL import (  # noqa: F401 - each registers its decoder
            AvifImagePlugin,
            BmpImagePlugin,
            GifImagePlugin,
            JpegImagePlugin,
            PngImagePlugin,
            TiffImagePlugin,
            WebPImagePlugin,
        )
    except ImportError:
        raise BadSetting("images need Pillow: pip install 'edgeinfer[vision]', and a model that sees") from None
    try:
        image = PIL.Image.open(_LimitedFile(data, n_bytes, n_reads), formats=(form,))
    except PIL.Image.DecompressionBombError:
        raise _ReadTooMuch(
            f"it has too many pixels; images may have up to {MOST_PIXELS // 1_000_000} million"
        ) from None
    with image, _silenced_libtiff() if form == "TIFF" else nullcontext():
        yield image


@contextmanager
def _silenced_libtiff() -> Iterator[None]:
    """While this runs libtiff prints no errors, where it is a library of its own: not on Windows."""
    import PIL._imaging

    try:
        set_handler = ctypes.CDLL(PIL._imaging.__file__).TIFFSetErrorHandler
    except (AttributeError, OSError):
        yield
        return
    set_handler.argtypes, set_handler.restype = [ctypes.c_void_p], ctypes.c_void_p
    before = set_handler(None)
    try:
        yield
    finally:
        set_handler(before)


@contextmanager
def _guarded(name: str) -> Iterator[None]:
    """Whatever a decoder raises is BadImage; its warnings are not shown."""
    logging.getLogger("PIL").addHandler(_NOWHERE)  # without one, errors that are logged are printed
    with _DECODING, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        except (BadImage, BadSetting):
            raise
        except Exception as reason:  # decoders raise errors of many kinds for damaged files
            text = " ".join(str(reason).split())[:200]
            told = "it is damaged" if not text or " object at 0x" in text else text
            raise BadImage(f"{name} cannot be decoded: {told}") from None


def _format_of(data: bytes, name: str) -> str:
    for beginning, form in _BEGINNINGS:
        if data.startswith(beginning):
            return form
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "WEBP"
    if data[4:8] == b"ftyp" and (b"avif" in data[8:64] or b"avis" in data[8:64]):
        return "AVIF"
    if not data:
        raise BadImage(f"{name} is empty")
    if data[4:8] == b"ftyp":
        raise BadImage(f"{name} is HEIC or a video; what can be read is {READABLE}")
    start = data[:256].lstrip().lower()
    other = next((kind for beginning, kind in _OTHER_BEGINNINGS if start.startswith(beginning)), "no known image")
    raise BadImage(f"{name} is {other}; what can be read is {READABLE}")


def _require_tiles(image: PillowImage, name: str) -> None:
    """Raises BadImage for a TIFF whose tiles are larger than any image may be."""
    tags: dict[int, object] = getattr(image, "tag_v2", {})
    width, height = (tags.get(tag, 1) for tag in (322, 323))
    if not (isinstance(width, int) and isinstance(height, int) and width * height <= MOST_PIXELS):
        raise BadImage(f"{name} has tiles of {width} x {height} pixels")


def _orientation(image: PillowImage, data: bytes) -> int:
    exif, xmp = (image.info.get(key, b"") for key in ("exif", "xmp"))
    if image.format == "PNG":
        exif, xmp = exif or _late_exif(data), image.info.get("XML:com.adobe.xmp", "").encode()
    return orientation_of(exif, xmp)


def _late_exif(data: bytes) -> bytes:
    """The EXIF block of a PNG that has it behind its pixels, as some tools write it."""
    place = 8
    for _ in range(MOST_CHUNKS):
        if place + 8 > len(data):
            break
        length, kind = struct.unpack_from(">I4s", data, place)
        if kind == b"eXIf":
            return data[place + 8 : place + 8 + length]
        place += 12 + length
    return b""


def _converted(image: PillowImage) -> PillowImage:
    """An image in RGB, what is transparent over white, as transformers' processors have it."""
    import PIL.Image

    if "A" not in image.getbands() and image.info.get("transparency") is None:
        return image.convert("RGB")
    own = image.convert("RGBA")
    white = PIL.Image.new("RGBA", own.size, (255, 255, 255, 255))
    return PIL.Image.alpha_composite(white, own).convert("RGB")
