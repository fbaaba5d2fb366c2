"""Resizing: close to Pillow's, whose weights have more bits; crops, canvases and normalisation as written out."""

from __future__ import annotations

import tracemalloc

import numpy as np
import PIL.Image
import pytest

from edgeinfer.models.images.resizing import (
    PIXELS_AT_ONCE,
    FilterName,
    Padded,
    centre_cropped,
    normalised,
    padded,
    rescaled,
    resized,
)

SIZES = [((37, 51), (64, 64)), ((300, 200), (75, 90)), ((7, 500), (14, 63)), ((64, 64), (64, 20)), ((2, 1), (9, 9))]


def picture(height: int, width: int) -> np.ndarray:
    """A smooth picture with some noise: uint8[height, width, 3]."""
    rows, columns = np.mgrid[0:height, 0:width]
    waves = np.stack([np.sin(rows / 9 + columns / 7 + turn) for turn in range(3)], axis=-1)
    noise = np.random.default_rng(height).normal(0, 8, waves.shape)
    return (128 + 90 * waves + noise).clip(0, 255).astype(np.uint8)


@pytest.mark.parametrize("name", ["bilinear", "bicubic", "lanczos"])
@pytest.mark.parametrize(("old", "new"), SIZES)
def test_resizing_differs_from_pillow_by_rounding_alone(
    name: FilterName, old: tuple[int, int], new: tuple[int, int]
) -> None:
    pixels = picture(*old)
    own = resized(pixels, new, name)
    pillow = PIL.Image.fromarray(pixels).resize(new[::-1], PIL.Image.Resampling[name.upper()])
    assert own.dtype == np.uint8
    assert own.shape == (*new, 3)
    assert np.abs(own.astype(int) - np.asarray(pillow)).max() <= 2


def test_the_same_size_changes_nothing_and_one_colour_stays() -> None:
    pixels = picture(9, 11)
    assert np.array_equal(resized(pixels, (9, 11), "bicubic"), pixels)
    plain = np.full((50, 30, 3), (1, 128, 255), np.uint8)
    for name in ("bilinear", "bicubic", "lanczos"):
        assert (resized(plain, (13, 77), name) == (1, 128, 255)).all()


def test_numbers_of_channels() -> None:
    pixels = picture(3, 5)
    mean, deviation = (0.48, 0.45, 0.4), (0.26, 0.27, 0.28)
    assert np.allclose(normalised(pixels, mean, deviation), (pixels / 255 - mean) / deviation, atol=1e-6)
    assert np.allclose(rescaled(pixels), pixels / 255, atol=1e-7)
    assert normalised(pixels, mean, deviation).dtype == rescaled(pixels).dtype == np.float32


class CountedRows:
    """A source of rows of one colour that notes the most rows that are asked for at once."""

    shape = (6000, 2000, 3)
    most = 0

    def __getitem__(self, rows: slice) -> np.ndarray:
        first, stop, _ = rows.indices(self.shape[0])
        self.most = max(self.most, stop - first)
        return np.full((stop - first, *self.shape[1:]), 7, np.uint8)


def test_a_large_image_is_read_in_bands_of_rows() -> None:
    source = CountedRows()
    tracemalloc.start()
    small = resized(source, (300, 100), "lanczos")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (small == 7).all()
    assert source.most * source.shape[1] <= PIXELS_AT_ONCE
    assert peak < np.prod(source.shape) / 2


def test_bands_of_a_canvas_are_those_of_the_whole() -> None:
    pixels = picture(7, 5)
    for centred in (False, True):
        canvas = Padded(pixels, (12, 9), (1, 2, 3), centred)
        whole = padded(pixels, (12, 9), (1, 2, 3), centred=centred)
        assert canvas.shape == whole.shape
        assert np.array_equal(np.concatenate([canvas[first : first + 5] for first in range(0, 12, 5)]), whole)
        assert np.array_equal(resized(canvas, (5, 4), "bicubic"), resized(whole, (5, 4), "bicubic"))


def test_the_middle_is_cut_out_and_filled_up() -> None:
    pixels = picture(7, 10)
    assert np.array_equal(centre_cropped(pixels, (4, 4)), pixels[1:5, 3:7])
    wide = centre_cropped(pixels, (10, 4))
    assert np.array_equal(wide[1:8], pixels[:, 3:7])
    assert not wide[0].any()
    assert not wide[8:].any()


def test_a_canvas_has_one_colour() -> None:
    pixels = picture(3, 4)
    middle = padded(pixels, (7, 8), (9, 8, 7), centred=True)
    assert np.array_equal(middle[2:5, 2:6], pixels)
    assert (middle[[0, 1, 5, 6]] == (9, 8, 7)).all()
    corner = padded(pixels, (5, 6))
    assert np.array_equal(corner[:3, :4], pixels)
    assert not corner[3:].any()
