"""Resizes and crops images, and turns them into numbers, bit for bit as image processors of transformers do.

In: uint8[H, W, 3] or what bands of rows are read from, sizes as (height, width). Out: uint8[H, W, 3], or
float32[H, W, 3]. Works without Pillow.

The reference is what these processors use where torchvision is installed, as is usual: antialiased interpolation of
8-bit channels, along rows first, with weights rounded to 16 bits. Pillow computes the same filters with weights of 22
bits, and not always along rows first: channels of pictures differ by 1 of 255 in places and seldom by 2, those of noise
by up to 40, since values are cut to 0 to 255 in between. What the families use, by default of their processors:

bilinear  Gemma 3, LFM2-VL
bicubic   Gemma 4, InternVL, LLaVA (CLIP and SigLIP), LLaVA 1.6, MiniCPM-V, Mistral 3, Pixtral, Qwen 2-VL to 3.5
lanczos   Idefics 3, SmolVLM, Granite Docling
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from edgeinfer.errors import BadImage

Pixels = NDArray[np.uint8]
"""RGB: uint8[height, width, 3]."""
Floats = NDArray[np.float32]
Size = tuple[int, int]
"""Height and width."""


class PixelSource(Protocol):
    """An image of which bands of rows are read: uint8[H, W, 3], or what a decoder holds in a form of its own."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Height, width and 3."""
        ...

    def __getitem__(self, rows: slice, /) -> Pixels:
        """Consecutive rows, or all (`[:]`): uint8[n, W, 3]."""
        ...


FilterName = Literal["bilinear", "bicubic", "lanczos"]

MOST_RESIZED = 50_000_000
"""Most pixels of a result, and of what is between its two steps; long and narrow images would become far larger."""
ROWS_AT_ONCE = 16
"""Rows that are computed together, as one product of a band of weights."""
NUMBERS_AT_ONCE = 1 << 21
"""Numbers that are multiplied by a band at a time."""
PIXELS_AT_ONCE = 1 << 20
"""Pixels of a source that are made as narrow as the result at a time; products of twice as many are slower, since BLAS
shares these among threads that wait for each other."""


def _bilinear(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(np.abs(x) < 1, 1 - np.abs(x), 0)


def _bicubic(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Keys' cubic convolution with a = -0.5 (1981)."""
    x = np.abs(x)
    inner = (1.5 * x - 2.5) * x * x + 1
    outer = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return np.where(x < 1, inner, np.where(x < 2, outer, 0))


def _lanczos(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(np.abs(x) < 3, np.sinc(x) * np.sinc(x / 3), 0)


_FILTERS: dict[FilterName, tuple[Callable[[NDArray[np.float64]], NDArray[np.float64]], int]] = {
    "bilinear": (_bilinear, 1),
    "bicubic": (_bicubic, 2),
    "lanczos": (_lanczos, 3),
}
"""Filters and how far they reach."""


@dataclass(frozen=True, slots=True)
class _Weights:
    """What each new row is the sum of: `table[i]` times the rows from `first[i]`, divided by 2^bits."""

    first: NDArray[np.int64]
    table: NDArray[np.float64]
    bits: int


def _weights(n_in: int, n_out: int, name: FilterName) -> _Weights:
    filter_of, reach = _FILTERS[name]
    scale = n_in / n_out
    stretch = max(scale, 1.0)
    support = reach * stretch
    centres = scale * (np.arange(n_out) + 0.5)
    first = np.maximum((centres - support + 0.5).astype(np.int64), 0)
    counts = np.minimum((centres + support + 0.5).astype(np.int64), n_in) - first
    offsets = np.arange(math.ceil(support) * 2 + 1)
    table = filter_of((offsets + first[:, None] - centres[:, None] + 0.5) * (1 / stretch))
    table[offsets >= counts[:, None]] = 0
    table /= table.sum(axis=1, keepdims=True)
    bits = next((n for n in range(22) if int(0.5 + table.max() * (1 << (n + 1))) >= 1 << 15), 22)
    return _Weights(first, np.trunc(table * (1 << bits) + np.copysign(0.5, table)), bits)


def _resized_rows(rows: Pixels, weights: _Weights) -> Pixels:
    """uint8[n_out, M] of uint8[n_in, M]."""
    n_in, n_out = len(rows), len(weights.first)
    out = np.empty((n_out, rows.shape[1]), np.uint8)
    for start in range(0, n_out, ROWS_AT_ONCE):
        first, table = weights.first[start : start + ROWS_AT_ONCE], weights.table[start : start + ROWS_AT_ONCE]
        end = min(int(first[-1]) + table.shape[1], n_in)
        band = np.zeros((len(table), int(first[-1]) - int(first[0]) + table.shape[1]))
        for place, row, own in zip(first - first[0], band, table, strict=True):
            row[place : place + len(own)] = own
        seen = rows[int(first[0]) : end]
        step = max(NUMBERS_AT_ONCE // len(seen), 1)
        for left in range(0, rows.shape[1], step):
            # sums of integers below 2^53, which no order of additions changes
            sums = band[:, : len(seen)] @ seen[:, left : left + step].astype(np.float64)
            sums += 1 << (weights.bits - 1)
            np.clip(np.floor(sums * 2.0**-weights.bits), 0, 255, out=sums)
            out[start : start + ROWS_AT_ONCE, left : left + step] = sums
    return out


def resized(pixels: PixelSource, size: Size, name: FilterName) -> Pixels:
    """An image in another size, antialiased. Raises BadImage where that takes too much memory."""
    height = pixels.shape[0]
    if max(size[0], height) * size[1] > MOST_RESIZED:
        raise BadImage("the image is too long and narrow for this model")
    across = _across(pixels, size[1], name)
    if height == size[0]:
        return across
    return _resized_rows(across.reshape(height, -1), _weights(height, size[0], name)).reshape(*size, 3)


def _across(pixels: PixelSource, width: int, name: FilterName) -> Pixels:
    """An image in another width, band by band: uint8[H, width, 3]."""
    height, before, _ = pixels.shape
    if before == width:
        return pixels[:]
    weights, step = _weights(before, width, name), max(PIXELS_AT_ONCE // before, 1)
    out = np.empty((height, width, 3), np.uint8)
    for top in range(0, height, step):
        band = out[top : top + step]
        columns = np.ascontiguousarray(pixels[top : top + len(band)].swapaxes(0, 1))
        band[:] = _resized_rows(columns.reshape(before, -1), weights).reshape(width, -1, 3).swapaxes(0, 1)
    return out


def normalised(pixels: Pixels, mean: Sequence[float], deviation: Sequence[float]) -> Floats:
    """Channels as numbers around 0: (x / 255 - mean) / deviation, rounded where torchvision's operations round."""
    scaled = pixels.astype(np.float32)
    scaled -= np.asarray(mean, np.float32) * np.float32(255)
    scaled /= np.asarray(deviation, np.float32) * np.float32(255)
    return scaled


def rescaled(pixels: Pixels) -> Floats:
    """Channels as numbers from 0 to 1."""
    return pixels.astype(np.float32) * np.float32(1 / 255)


def centre_cropped(pixels: Pixels, size: Size) -> Pixels:
    """The middle of an image, black where it is smaller."""
    height, width = size
    before = [max(want - has, 0) // 2 for want, has in zip(size, pixels.shape, strict=False)]
    after = [(max(want - has, 0) + 1) // 2 for want, has in zip(size, pixels.shape, strict=False)]
    if any(after):
        pixels = np.pad(pixels, (*zip(before, after, strict=True), (0, 0)))
    top, left = (pixels.shape[0] - height) // 2, (pixels.shape[1] - width) // 2
    return pixels[top : top + height, left : left + width]


@dataclass(frozen=True, slots=True)
class Padded:
    """An image on a canvas of one colour, as a source of rows: in the middle, or at the top left."""

    pixels: PixelSource
    size: Size
    colour: Sequence[int] = (0, 0, 0)
    centred: bool = False

    @property
    def shape(self) -> tuple[int, int, int]:
        """As `PixelSource`."""
        return *self.size, 3

    def __getitem__(self, rows: slice, /) -> Pixels:
        """As `PixelSource`."""
        height, width, _ = self.pixels.shape
        above, left = ((self.size[0] - height) // 2, (self.size[1] - width) // 2) if self.centred else (0, 0)
        first, stop, _ = rows.indices(self.size[0])
        canvas = np.empty((stop - first, self.size[1], 3), np.uint8)
        canvas[:] = np.asarray(self.colour, np.uint8)
        top, bottom = max(first - above, 0), min(stop - above, height)
        if top < bottom:
            canvas[top + above - first : bottom + above - first, left : left + width] = self.pixels[top:bottom]
        return canvas


def padded(pixels: PixelSource, size: Size, colour: Sequence[int] = (0, 0, 0), *, centred: bool = False) -> Pixels:
    """An image on a canvas of one colour: in the middle, or at the top left."""
    return Padded(pixels, size, colour, centred)[:]
