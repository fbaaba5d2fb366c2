"""What it costs to encode an image: its products, attention of all patches to all, tile by tile."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeinfer.models.projector_file import open_projector
from edgeinfer.scheduling.cost.images import EncoderWork
from tests.golden.goldens import DATA
from tests.unit.scheduling.profiles import device, machine

MADDS = 1e6
"""So few multiply-adds per second that nothing else counts."""
SLOW = machine(cpu=device(read=1e15, madds=MADDS))
PROJECTOR: Path = DATA / "vision" / "mmproj-idefics3.gguf"
PATCHES, WIDTH, FFN, LAYERS, ROWS, OUT = 16, 48, 96, 3, 4, 32
PATCH = 3 * 8 * 8


def test_a_tile_is_a_pass_of_all_its_patches_and_one_of_its_rows() -> None:
    layer = PATCHES * (4 * WIDTH * WIDTH + 2 * WIDTH * FFN) + 2 * WIDTH * PATCHES * PATCHES
    tile = PATCHES * PATCH * WIDTH + LAYERS * layer + ROWS * OUT * 4 * WIDTH
    with open_projector(PROJECTOR) as projector:
        work = EncoderWork.of(projector.encoder, projector.file.tensors)
        for size, n_tiles in (((32, 32), 17), ((32, 64), 9)):
            plan = projector.encoder.plan(size)
            assert len(plan.tiles) == n_tiles
            assert work.seconds(SLOW, plan) == pytest.approx(n_tiles * tile / MADDS, rel=1e-3)
