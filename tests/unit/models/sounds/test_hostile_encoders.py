"""Projector files of sound with odd values: an encoder within its limits, or an error of ours, at once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgeinfer.errors import EdgeInferError, UnsupportedModel
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.projector_file import encoders_of, open_projector
from tests.golden.goldens import DATA
from tests.unit.models.headers import keyed

FILES = sorted((DATA / "sounds").glob("mmproj-*.gguf"))
HEARING = DATA / "sounds" / "mmproj-qwen2a.gguf"
VALUES: tuple[object, ...] = (None, 0, 1, 3, 100_000, (1 << 31) - 1, -1, "x", 0.0, 1e30, [0.0, 0.0, 0.0])
LENGTHS = (400, 16_000, 480_000, 57_600_000)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_key_with_odd_values(path: Path, tmp_path: Path) -> None:
    n_opened = n_refused = 0
    with GGUFFile.open(path) as file:
        held = {key: file.metadata.get(key) for key in file.metadata if key.startswith("clip.")}
        values = {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in held.items()}
        for key in set(values) - {"clip.projector_type"}:
            for value in VALUES:
                try:
                    encoder = encoders_of(keyed(tmp_path, "clip", values | {key: value}), file.tensors).sound
                    if encoder is None:
                        continue
                    for length in LENGTHS:
                        for tile in encoder.plan(length).tiles:
                            assert tile.n_rows > 0
                            assert 0 < tile.grid[1] <= encoder.n_most
                    n_opened += 1
                except EdgeInferError:
                    n_refused += 1
    assert n_opened > 0
    assert n_refused > 0


def test_a_type_that_is_not_known_names_those_that_are(tmp_path: Path) -> None:
    with GGUFFile.open(HEARING) as file:
        held = {key: file.metadata.get(key) for key in file.metadata if key.startswith("clip.")}
        metadata = keyed(tmp_path, "clip", held | {"clip.projector_type": "lfm2a"})
        with pytest.raises(
            UnsupportedModel, match=r"'lfm2a'; edgeinfer has: qwen2_5vl_merger, qwen2a, ultravox, voxtral"
        ):
            encoders_of(metadata, file.tensors)


def test_a_projector_that_only_hears_has_no_encoder_of_images() -> None:
    with open_projector(HEARING) as projector:
        assert projector.encoders.images is None
        with pytest.raises(UnsupportedModel, match="sound, not images"):
            _ = projector.encoder
