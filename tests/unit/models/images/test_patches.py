"""Tiles and patches are where they are in the image, and a product with patches is the convolution."""

from __future__ import annotations

import numpy as np

from edgeinfer.models.images.patches import block_order, normalised_patches, patches_of, tiles_of
from edgeinfer.models.images.resizing import normalised


def test_tiles_follow_one_another_row_by_row() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (6, 12, 3), np.uint8)
    tiles = tiles_of(pixels, (3, 4))
    assert tiles.shape == (6, 3, 4, 3)
    assert np.array_equal(tiles[4], pixels[3:6, 4:8])


def test_a_product_with_patches_is_a_convolution() -> None:
    random = np.random.default_rng(1)
    image, kernel = random.normal(size=(8, 12, 3)).astype(np.float32), random.normal(size=(5, 3, 4, 4))
    rows = patches_of(image, 4) @ kernel.reshape(5, -1).T
    for down in range(2):
        for across in range(3):
            patch = image[4 * down : 4 * down + 4, 4 * across : 4 * across + 4].transpose(2, 0, 1)
            assert np.allclose(rows[3 * down + across], (kernel * patch).sum((1, 2, 3)), atol=1e-5)


def test_normalised_patches_are_patches_of_what_is_normalised() -> None:
    pixels = np.random.default_rng(2).integers(0, 256, (8, 12, 3), np.uint8)
    mean, deviation, order = (0.48, 0.45, 0.4), (0.26, 0.27, 0.28), block_order((2, 3), 1)[::-1]
    whole = patches_of(normalised(pixels, mean, deviation), 4)
    assert normalised_patches(pixels, 4, mean, deviation).tobytes() == whole.tobytes()
    assert normalised_patches(pixels, 4, mean, deviation, order).tobytes() == whole[order].tobytes()


def test_squares_of_patches_follow_one_another() -> None:
    order = block_order((4, 6), 2)
    assert order[:8].tolist() == [0, 1, 6, 7, 2, 3, 8, 9]
    assert sorted(order) == list(range(24))
