"""Encoders of sound: transformers' spectra and rows of the same sounds, on the reference device and the cpu."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from edgeinfer.backends.base import Device, DeviceOptions, open_device
from edgeinfer.backends.reference import ReferenceDevice
from edgeinfer.engine.kv import limits
from edgeinfer.engine.media.open_encoder import OpenEncoder
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.projector_file import ProjectorFile, open_projector
from edgeinfer.models.projectors import PROJECTORS, sound_type
from edgeinfer.models.sounds.encoder import SoundEncoder
from edgeinfer.models.sounds.mel import log_mel
from tests.golden.goldens import DATA
from tests.golden.test_image_rows import opening

SOUNDS = DATA / "sounds"
NAMES = sorted(path.stem for path in SOUNDS.glob("*.npz") if path.stem != "mels")
TOLERANCES = {"reference": 1e-5, "cpu": 1e-3}
"""Of the norm of all rows; the cpu keeps keys and values as float16."""
EVERY = 97


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
    with open_projector(SOUNDS / f"mmproj-{name}.gguf") as opened:
        yield opened


def encoder_in(projector: ProjectorFile) -> SoundEncoder:
    assert projector.encoders.sound is not None
    return projector.encoders.sound


def test_rows_are_those_of_transformers(device: Device, name: str, projector: ProjectorFile) -> None:
    encoder, held = encoder_in(projector), np.load(SOUNDS / f"{name}.npz")
    opened = OpenEncoder(projector, "", opening(device), encoder)
    for number in range(sum(key.startswith("samples") for key in held)):
        samples, wanted = held[f"samples{number}"].astype(np.float32) / 128, held[f"rows{number}"]
        plan = encoder.plan(len(samples))
        tiles = encoder.tiles(samples, plan)
        found = [opened.encoded(tile, part.grid) for tile, part in zip(tiles, plan.tiles, strict=True)]
        assert [len(rows) for rows in found] == [part.n_rows for part in plan.tiles] == held[f"counts{number}"].tolist()
        rows = np.concatenate(found)
        assert np.linalg.norm(rows - wanted) <= TOLERANCES[device.name] * np.linalg.norm(wanted)
    opened.close()


def test_rows_are_the_same_in_parts(
    cpu: Device, name: str, projector: ProjectorFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = encoder_in(projector)
    samples = np.load(SOUNDS / f"{name}.npz")["samples0"].astype(np.float32) / 128
    plan, found = encoder.plan(len(samples)), []
    for most in (limits.ROWS_AT_ONCE, 7):
        monkeypatch.setattr(limits, "ROWS_AT_ONCE", most)
        opened = OpenEncoder(projector, "", opening(cpu), encoder)
        found.append(opened.encoded(encoder.tiles(samples, plan)[0], plan.tiles[0].grid))
        opened.close()
    assert found[0].tobytes() == found[1].tobytes()


def test_spectra_are_those_of_transformers() -> None:
    held = np.load(SOUNDS / "mels.npz")
    for number in range(sum(key.startswith("length") for key in held)):
        samples = np.resize(held[f"samples{number}"], int(held[f"length{number}"])).astype(np.float32) / 128
        wanted = held[f"mels{number}"]
        found = log_mel(samples, wanted.shape[1])
        assert found.shape == (held[f"frames{number}"], wanted.shape[1])
        assert np.abs(found[::EVERY] - wanted).max() < 1e-4  # theirs is computed with float32
        assert np.abs(found.sum(axis=0, dtype=np.float64) - held[f"sums{number}"]).max() < 1e-6 * found.size


def test_every_type_of_sound_has_a_golden_file() -> None:
    types = set()
    for each in NAMES:
        with GGUFFile.open(SOUNDS / f"mmproj-{each}.gguf") as file:
            types.add(sound_type(file.metadata))
    for key, projector in PROJECTORS.entries().items():
        assert projector.sound is None or types & {key, *projector.aliases}, key
