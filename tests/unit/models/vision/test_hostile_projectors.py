"""Projector files with odd values: an encoder within its limits, or an error of ours, at once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgeinfer.errors import EdgeInferError
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.projector_file import encoders_of
from tests.golden.goldens import DATA
from tests.unit.models.headers import keyed

FILES = sorted((DATA / "vision").glob("mmproj-*.gguf"))
VALUES: tuple[object, ...] = (None, 0, 1, 3, 100_000, (1 << 31) - 1, -1, "x", 0.0, 1e30, [0.0, 0.0, 0.0])
SIZES = ((1, 1), (100, 70), (4000, 30))
FURTHER = ("image_min_pixels", "image_max_pixels", "window_size", "n_wa_pattern", "spatial_merge_size")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_key_with_odd_values(path: Path, tmp_path: Path) -> None:
    n_opened = n_refused = 0
    with GGUFFile.open(path) as file:
        held = {key: file.metadata.get(key) for key in file.metadata if key.startswith("clip.")}
        values = {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in held.items()}
        for key in {*values, *(f"clip.vision.{name}" for name in FURTHER)} - {"clip.projector_type"}:
            for value in VALUES:
                metadata = keyed(tmp_path, "clip", values | {key: value})
                try:
                    encoder = encoders_of(metadata, file.tensors).of_images
                    for size in SIZES:
                        for tile in encoder.plan(size).tiles:
                            assert tile.n_rows > 0
                            assert tile.grid[0] * tile.grid[1] <= encoder.n_most
                    n_opened += 1
                except EdgeInferError:
                    n_refused += 1
    assert n_opened > 0
    assert n_refused > 0
