"""RMSNorms without a weight, of heads and of whole rows, on every device: as with a weight of ones in the file."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgeinfer.backends.base import Device, DeviceOptions, device_kinds, open_device
from edgeinfer.backends.reference import ReferenceDevice
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.ops.rms_norm import RMSNorm
from edgeinfer.models.load import open_model
from tests.golden.goldens import Golden, distance, fed

NAMES = ("qwen3-f32", "qwen3-q8_0", "gemma3-q8_0", "olmo2-q8_0")


def bare(spec: ModelSpec) -> ModelSpec:
    """The model with all its RMSNorms bare."""
    stages = [
        replace(stage, ops=tuple(replace(op, weight=None) if isinstance(op, RMSNorm) else op for op in stage.ops))
        for stage in spec.stages
    ]
    return replace(spec, stages=tuple(stages))


@pytest.fixture(params=NAMES)
def golden(request: pytest.FixtureRequest) -> Golden:
    return Golden.read(request.param)


@pytest.mark.parametrize(
    "computing", [key for key in device_kinds() if key not in ("null", "reference")], indirect=True
)
def test_devices_agree_on_norms_without_weights(computing: Device, golden: Golden) -> None:
    with open_model(golden.model, golden.n_context) as model:
        weighted, spec = model.spec, bare(model.spec)
    assert spec != weighted
    expected = fed(ReferenceDevice(), golden, spec, [])
    found = fed(computing, golden, spec, [10, 11, 40])
    assert distance(found, expected) < (2e-3 if golden.model.stem.endswith("f32") else 0.1)
    assert distance(found, fed(computing, golden, weighted, [10, 11, 40])) > 0.02


def test_the_cpu_gives_the_same_bits_in_passes_of_any_size(golden: Golden) -> None:
    with open_model(golden.model, golden.n_context) as model:
        spec = bare(model.spec)
    device = open_device("cpu", DeviceOptions(n_workers=2))
    whole, parts = (fed(device, golden, spec, cuts) for cuts in ([], [1, 2, 13, 50]))
    device.close()
    assert whole.tobytes() == parts.tobytes()
