"""Devices by their names, and golden models that they run; tests of what cannot be run here are skipped.

In: a device's name; a device and a golden model. Out: an open device.
"""

from __future__ import annotations

import pytest

from edgeinfer.backends.base import DEVICES, Device, DeviceOptions, Limits, open_device
from edgeinfer.errors import DeviceUnavailable, UnsupportedModel
from edgeinfer.models.load import open_model
from tests.golden.goldens import ALL_OPS, PAGES, Golden, is_cpu_only

COUNTING = {"null"}
"""Devices that compute nothing."""


def opened(key: str) -> Device:
    """A device with two workers; skips the test where it cannot run."""
    try:
        return open_device(key, DeviceOptions(n_workers=2))
    except DeviceUnavailable as reason:
        pytest.skip(f"{key}: {reason}")


def skip_refused(device: Device, golden: Golden) -> None:
    """Skip the test of a model with ops that the device has not, if it says so itself; it must run all others."""
    with open_model(golden.model, golden.n_context) as model:
        try:
            DEVICES.get(device.name).footprint(model.spec, model.file.tensors, Limits(golden.n_context, PAGES))
        except UnsupportedModel as reason:
            refusal = str(reason)
        else:
            refusal = ""
    assert bool(refusal) == (is_cpu_only(golden.name) and device.name not in ALL_OPS), refusal
    if refusal:
        pytest.skip(f"{golden.name}: {refusal}")
