"""The devices that golden logits are asked of, each with the distance it may have from transformers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from edgeinfer.backends.base import Device
from edgeinfer.backends.reference import ReferenceDevice
from tests.golden.golden_devices import opened


@dataclass(frozen=True, slots=True)
class Judged:
    """A device and its tolerances: relative distance of logits from transformers, and between two ways to batch.

    float32 sums in another order differ by some 1e-6 of the logits here, and transformers computes rotary angles in
    float32 where edgeinfer uses float64, which adds as much; 1e-5 leaves room for another BLAS. Every mistake that
    `test_goldens_see_every_feature` knows costs over 1e-3. Activations rounded to int8 cost up to 5e-2 on these tiny
    widths, where errors hardly average out; llama.cpp shows as much on these files. Where sums in another order tip one
    of them, layers with states carry it on, so two ways to batch may differ by half of that. OpenVINO rounds
    activations likewise, or computes in bfloat16, and keeps keys and values as float16.
    """

    device: Device
    tolerance: float
    batching: float


TOLERANCES = {"openvino": (1e-1, 5e-2), "onnx": (1e-1, 2e-2)}


@pytest.fixture(scope="module", params=["reference", "reference-int8", *TOLERANCES])
def judged(request: pytest.FixtureRequest) -> Iterator[Judged]:
    if request.param == "reference":
        yield Judged(ReferenceDevice(), 1e-5, 1e-5)
    elif request.param == "reference-int8":
        yield Judged(ReferenceDevice("int8", "f16"), 1e-1, 5e-2)
    else:
        device = opened(request.param)
        yield Judged(device, *TOLERANCES[request.param])
        device.close()
