"""Image encoders: transformers' rows of the same images, on the reference device and the cpu."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from edgeinfer.backends.base import Device, DeviceOptions, Limits, open_device
from edgeinfer.backends.reference import ReferenceDevice
from edgeinfer.engine.kv import limits
from edgeinfer.engine.media.open_encoder import OpenEncoder
from edgeinfer.engine.run.evaluators import SequenceEvaluator
from edgeinfer.engine.run.executor import Executor
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.projector_file import ProjectorFile, open_projector
from edgeinfer.models.projectors import PROJECTORS, TYPE_KEYS
from tests.golden.goldens import DATA

VISION = DATA / "vision"
NAMES = sorted(path.stem for path in VISION.glob("*.npz"))
TOLERANCES = {"reference": 1e-5, "cpu": 1e-3}
"""Of the norm of all rows; the cpu keeps keys and values as float16."""

pytest.importorskip("PIL")


@pytest.fixture(scope="module")
def cpu() -> Iterator[Device]:
    device = open_device("cpu", DeviceOptions(n_workers=2))
    yield device
    device.close()


@pytest.fixture(scope="module", params=["reference", "cpu"])
def device(request: pytest.FixtureRequest, cpu: Device) -> Device:
    return cpu if request.param == "cpu" else ReferenceDevice()


@pytest.fixture(scope="module", params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture(scope="module")
def projector(name: str) -> Iterator[ProjectorFile]:
    with open_projector(VISION / f"mmproj-{name}.gguf") as opened:
        yield opened


def opening(device: Device) -> Callable[[ModelSpec, GGUFFile, str, Limits], SequenceEvaluator]:
    """What opens models on a device."""

    def beside(spec: ModelSpec, file: GGUFFile, fingerprint: str, limits: Limits) -> SequenceEvaluator:
        lane = device.compile(spec, file, limits)
        return Executor(device, lane, limits, fingerprint, is_guest=True, inputs=spec.inputs)

    return beside


def test_rows_are_those_of_transformers(device: Device, name: str, projector: ProjectorFile) -> None:
    encoder, held = projector.encoder, np.load(VISION / f"{name}.npz")
    opened = OpenEncoder(projector, "", opening(device))
    for number in range(sum(key.startswith("pixels") for key in held)):
        pixels, wanted = held[f"pixels{number}"], held[f"rows{number}"]
        plan = encoder.plan(pixels.shape[:2])
        tiles = encoder.tiles(pixels, plan)
        found = [opened.encoded(tile, part.grid) for tile, part in zip(tiles, plan.tiles, strict=True)]
        assert [len(rows) for rows in found] == [part.n_rows for part in plan.tiles]
        rows = np.concatenate(found)
        assert rows.shape == wanted.shape
        assert np.linalg.norm(rows - wanted) <= TOLERANCES[device.name] * np.linalg.norm(wanted)
    opened.close()


def test_rows_are_the_same_projected_in_parts(
    cpu: Device, name: str, projector: ProjectorFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    pixels = np.load(VISION / f"{name}.npz")["pixels0"]
    plan = projector.encoder.plan(pixels.shape[:2])
    tile = projector.encoder.tiles(pixels, plan)[0]
    found = []
    for most in (limits.ROWS_AT_ONCE, 3):
        monkeypatch.setattr(limits, "ROWS_AT_ONCE", most)
        opened = OpenEncoder(projector, "", opening(cpu))
        found.append(opened.encoded(tile, plan.tiles[0].grid))
        opened.close()
    assert found[0].tobytes() == found[1].tobytes()


def test_rows_are_the_same_after_memory_was_given_back(cpu: Device, name: str, projector: ProjectorFile) -> None:
    pixels = np.load(VISION / f"{name}.npz")["pixels0"]
    plan = projector.encoder.plan(pixels.shape[:2])
    tile = projector.encoder.tiles(pixels, plan)[0]
    opened = OpenEncoder(projector, "", opening(cpu))
    before = opened.encoded(tile, plan.tiles[0].grid)
    opened.give_back()
    assert opened.encoded(tile, plan.tiles[0].grid).tobytes() == before.tobytes()
    opened.close()


def test_tiles_wait_as_pixels(name: str, projector: ProjectorFile) -> None:
    """Floats take four times as much as pixels, and there may be a dozen tiles, of several images."""
    pixels = np.load(VISION / f"{name}.npz")["pixels0"]
    tiles = projector.encoder.tiles(pixels, projector.encoder.plan(pixels.shape[:2]))
    assert all(callable(tile.patches) for tile in tiles)
    assert all(np.array_equal(tile.made(), tile.made()) for tile in tiles)


def test_every_projector_type_has_a_golden_file() -> None:
    types = set()
    for each in NAMES:
        with GGUFFile.open(VISION / f"mmproj-{each}.gguf") as file:
            types |= {file.metadata.text(key) for key in TYPE_KEYS if key in file.metadata}
    for key, projector in PROJECTORS.entries().items():
        assert projector.build is None or types & {key, *projector.aliases}, key
