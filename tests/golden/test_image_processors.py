"""Images of odd sizes, modes and orientations become the numbers of transformers' processors, bit for bit.

The data are made by `scripts/make_image_goldens.py`, which says what they are.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from edgeinfer import Image
from edgeinfer.errors import BadImage
from edgeinfer.models.images import sizes, tiling
from edgeinfer.models.images.patches import block_order, patches_of
from edgeinfer.models.images.resizing import Floats, Pixels, centre_cropped, normalised, padded, rescaled, resized

DATA = Path(__file__).parent / "data" / "images"
FILES = sorted(path for path in DATA.iterdir() if path.stem.isdecimal())
RESULTS = np.load(DATA / "results.npz")
RULES = json.loads((DATA / "sizes.json").read_text())
CLIP_MEAN, CLIP_DEVIATION = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
HALF = (0.5, 0.5, 0.5)
PINPOINTS = ((336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008))
MINICPM = tiling.MiniCPMTiling(factor=56)


def clip_numbers(pixels: Pixels) -> Floats:
    """Normalised as CLIP's images are."""
    return normalised(pixels, CLIP_MEAN, CLIP_DEVIATION)


def siglip_numbers(pixels: Pixels) -> Floats:
    """Normalised as SigLIP's images are."""
    return normalised(pixels, HALF, HALF)


def flat(tiles: Floats) -> Floats:
    """float32[N, H, W, 3] as float32[N, 3 * H * W]."""
    return tiles.transpose(0, 3, 1, 2).reshape(len(tiles), -1)


def clip(pixels: Pixels) -> Floats:
    """LLaVA of CLIP: the shorter edge fits, the middle is seen."""
    small = resized(pixels, sizes.shortest_edge_size(pixels.shape[:2], 336), "bicubic")
    return flat(clip_numbers(centre_cropped(small, (336, 336)))[None])


def llava(pixels: Pixels) -> Floats:
    """LLaVA with images padded to squares."""
    colour = [int(255 * mean) for mean in CLIP_MEAN]
    square = padded(pixels, sizes.square_size(pixels.shape[:2]), colour, centred=True)
    return flat(clip_numbers(resized(square, (336, 336), "bicubic"))[None])


def gemma4(pixels: Pixels) -> Floats:
    """Gemma 4."""
    return patches_of(rescaled(resized(pixels, sizes.gemma4_size(pixels.shape[:2], 16, 3, 280), "bicubic")), 16)


def mistral3(pixels: Pixels) -> Floats:
    """Pixtral and Mistral 3."""
    return flat(clip_numbers(resized(pixels, sizes.pixtral_size(pixels.shape[:2], 616, 28), "bicubic"))[None])


def qwen3(pixels: Pixels) -> Floats:
    """Qwen 3-VL."""
    size = sizes.multiples_within(pixels.shape[:2], 32, 65536, 400_000)
    patches = patches_of(siglip_numbers(resized(pixels, size, "bicubic")), 16)
    return patches[block_order((size[0] // 16, size[1] // 16), 2)]


FAMILIES: dict[str, Callable[[Pixels], Floats]] = {
    "clip": clip,
    "gemma3": lambda x: flat(siglip_numbers(resized(x, (224, 224), "bilinear"))[None]),
    "gemma4": gemma4,
    "idefics3": lambda x: flat(siglip_numbers(tiling.idefics_tiles(x, 128, 512))),
    "internvl": lambda x: flat(clip_numbers(tiling.internvl_tiles(x, 112))),
    "lfm2": lambda x: np.concatenate(
        [patches_of(siglip_numbers(tile), 16) for tile in tiling.lfm2_tiles(x, tiling.LFM2Tiling())]
    ),
    "llava": llava,
    "llava_next": lambda x: flat(clip_numbers(tiling.llava_next_tiles(x, 336, PINPOINTS))),
    "minicpm": lambda x: np.concatenate(
        [patches_of(siglip_numbers(tile), 14) for tile in tiling.minicpm_tiles(x, MINICPM)]
    ),
    "mistral3": mistral3,
    "qwen3": qwen3,
}


def minicpm_sizes(size: tuple[int, int]) -> tuple[int, ...]:
    """The whole image's size, the grid, and a tile's size."""
    grid = MINICPM.grid(size)
    return *MINICPM.whole_size(size), *grid, *((0, 0) if grid == (0, 0) else MINICPM.tile_size(size))


def llava_next_sizes(size: tuple[int, int]) -> tuple[int, ...]:
    """The canvas, and the image's size on it."""
    canvas = sizes.best_canvas(size, PINPOINTS)
    return *canvas, *sizes.size_on_canvas(size, canvas)


OWN_RULES: dict[str, Callable[[tuple[int, int]], tuple[int, ...]]] = {
    "clip": lambda size: sizes.shortest_edge_size(size, 336),
    "gemma4": lambda size: sizes.gemma4_size(size, 16, 3, 280),
    "idefics3": lambda size: sum(tiling.idefics_sizes(size, 512, 2048), ()),
    "internvl": lambda size: tiling.closest_grid(size, 448, 1, 12),
    "lfm2": lambda size: (*tiling.LFM2Tiling().size(size), *tiling.LFM2Tiling().grid(size)),
    "llava_next": llava_next_sizes,
    "minicpm": minicpm_sizes,
    "mistral3": lambda size: sizes.pixtral_size(size, 1540, 28),
    "qwen": lambda size: sizes.multiples_within(size, 32, 65536, 16777216),
    "qwen2": lambda size: sizes.multiples_within(size, 28, 3136, 1003520),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_images_become_the_numbers_of_transformers(family: str) -> None:
    assert len(FILES) >= 30
    shapes, samples, sums = (RESULTS[f"{family}.{name}"] for name in ("shapes", "samples", "sums"))
    for number, path in enumerate(FILES):
        found = np.ascontiguousarray(FAMILIES[family](Image.of(path).pixels()))
        assert found.dtype == np.float32
        assert found.shape == tuple(shapes[number]), path.name
        places = np.sort(np.random.default_rng(found.size).integers(0, found.size, samples.shape[1]))
        np.testing.assert_array_equal(found.reshape(-1)[places], samples[number], err_msg=path.name)
        assert zlib.crc32(found.tobytes()) == sums[number], path.name


@pytest.mark.parametrize("rule", OWN_RULES)
def test_sizes_are_those_of_transformers(rule: str) -> None:
    for size, told in zip(RULES["sizes"], RULES[rule], strict=True):
        if told is None or 0 in told[:2]:
            with pytest.raises(BadImage):
                OWN_RULES[rule](tuple(size))
        else:
            assert list(OWN_RULES[rule](tuple(size))) == told, size


def test_every_rule_of_the_data_is_tested() -> None:
    assert set(OWN_RULES) == set(RULES) - {"sizes"}
    assert {name.split(".")[0] for name in RESULTS} == set(FAMILIES)
