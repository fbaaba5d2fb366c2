"""MiniCPM-V's prompts: what stands around an image and its tiles, by the version in its projector file."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from edgeinfer import Image
from edgeinfer.engine.requests.media_prompts import NamedMedia, NamedTile, PlacedMedia
from edgeinfer.errors import BadGGUF, BadImage, UnsupportedModel
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.projector_file import encoders_of
from edgeinfer.models.vision.encoder import ImageEncoder, MediaPlan
from tests.golden.goldens import DATA
from tests.unit.models.headers import keyed

FOUR_TILES = (128, 128)
QUERIES = 5


def encoder(tmp_path: Path, name: str = "resampler", **changed: object) -> ImageEncoder:
    """The golden encoder, some of its keys changed."""
    with GGUFFile.open(DATA / "vision" / f"mmproj-{name}.gguf") as file:
        held = {key: file.metadata.get(key) for key in file.metadata if key.startswith("clip.")}
        values = {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in held.items()}
        values |= {f"clip.{key}": value for key, value in changed.items()}
        images = encoders_of(keyed(tmp_path, "clip", values), file.tensors).images
    assert images is not None
    return images


def written(*plans: MediaPlan) -> str:
    """Images of one prompt, "*" for each tile."""
    image = Image.of(np.zeros((2, 2, 3), np.uint8))
    named = (
        NamedMedia(
            "image", plan, tuple(NamedTile(image, number, tile, str(number)) for number, tile in enumerate(plan.tiles))
        )
        for plan in plans
    )
    pieces = PlacedMedia(tuple(named), {"image": re.compile("@")}).split("@" * len(plans))
    return "".join(piece if isinstance(piece, str) else "*" for piece in pieces)


@pytest.mark.parametrize("version", [3, 4, 5, 6, 100045])
def test_images_are_numbered_from_the_first_of_a_prompt(tmp_path: Path, version: int) -> None:
    found = encoder(tmp_path, minicpmv_version=version)
    small, large = found.plan((60, 60)), found.plan(FOUR_TILES)
    assert [tile.n_rows for tile in large.tiles] == [QUERIES] * 5
    assert written(small, large) == (
        "<image_id>0</image_id><image>*</image><image_id>1</image_id><image>*</image>"
        "<slice>*</slice><slice>*</slice>\n<slice>*</slice><slice>*</slice>"
    )


def test_version_4_6_writes_the_same(tmp_path: Path) -> None:
    plans = [encoder(tmp_path, name).plan(FOUR_TILES) for name in ("resampler", "minicpmv4_6", "minicpmv4_6-4x")]
    assert len({written(plan) for plan in plans}) == 1
    assert [plan.tiles[0].n_rows for plan in plans] == [QUERIES, 4, 16]


def test_version_2_5_has_no_numbers_and_images_in_one_slice(tmp_path: Path) -> None:
    for version in (0, 2):
        plan = encoder(tmp_path, minicpmv_version=version).plan(FOUR_TILES)
        tiles = "<image>*</image><image>*</image>"
        assert written(plan) == f"<image>*</image><slice>{tiles}\n{tiles}</slice>"
        assert written(encoder(tmp_path, minicpmv_version=version).plan((9, 9))) == "<image>*</image>"


def test_version_2_0_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="version 1; edgeinfer has: 2, 3"):
        encoder(tmp_path, minicpmv_version=1)


def test_shapes_that_are_too_long_are_refused(tmp_path: Path) -> None:
    for name in ("resampler", "minicpmv4_6"):
        found = encoder(tmp_path, name)
        assert found.plan((12000, 100)).n_rows > 0
        with pytest.raises(BadImage, match="too long and narrow"):
            found.plan((20000, 10))


def test_tiles_have_more_patches_than_there_are_queries(tmp_path: Path) -> None:
    with pytest.raises(BadGGUF, match="5 queries, too many for tiles of 24 pixels"):
        encoder(tmp_path, **{"vision.image_size": 24})
    found = encoder(tmp_path, **{"vision.image_size": 32})
    for size in ((1, 1), (20, 4000), (31, 32), (45, 1000)):
        assert min(tile.grid[0] * tile.grid[1] for tile in found.plan(size).tiles) >= QUERIES


def test_layers_must_follow_the_first_merge(tmp_path: Path) -> None:
    with pytest.raises(BadGGUF, match="after layer 4 of 4"):
        encoder(tmp_path, "minicpmv4_6", **{"vision.wa_layer_indexes": [3]})
