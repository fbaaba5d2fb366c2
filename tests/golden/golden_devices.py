"""Devices by their names, and golden models that they run; tests of what cannot be run here are skipped.

In: a device's name; a device and a golden model. Out: an open device; the compiled kernels of the cpu device.
"""

from __future__ import annotations

import importlib
import itertools
from typing import get_args

import pytest

from edgeinfer.backends.base import DEVICES, Device, DeviceOptions, Limits, open_device
from edgeinfer.backends.cpu.catalogue import kernel_library
from edgeinfer.backends.cpu.lowering.needs import kernels_of
from edgeinfer.errors import DeviceUnavailable, UnsupportedModel
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.jit import targets
from edgeinfer.jit.code import CompiledFunction, Kernel
from edgeinfer.jit.cpu import cpu_features
from edgeinfer.models.load import open_model
from edgeinfer.settings import KVKind
from edgeinfer.steps import no_progress
from tests.golden.goldens import ALL_OPS, DATA, PAGES, RESULTS, Golden, is_cpu_only
from tests.unit.backends.cpu.kernel_calls import DISTINCT, SINGLE_KINDS

OF_ALL_ISAS = ("llama-q8_0", "gemma2-q4_0", "qwen3moe-k", "lfm2-q8_0", "qwen35-q8_0")
"""Golden models that run with every instruction set."""
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
            _check_fields(device, model.spec)
        except UnsupportedModel as reason:
            refusal = str(reason)
        else:
            refusal = ""
    assert bool(refusal) == (is_cpu_only(golden.name) and device.name not in ALL_OPS), refusal
    if refusal:
        pytest.skip(f"{golden.name}: {refusal}")


def _check_fields(device: Device, spec: ModelSpec) -> None:
    """Raises UnsupportedModel for a field of an op that the device does not know, which it says when it compiles."""
    name = f"edgeinfer.backends.{device.name}.ops"
    if device.name not in ALL_OPS:
        importlib.import_module(name).DEVICE_OPS.check(spec.ops())


def compile_kernels() -> None:
    """Compile what the golden models need on the cpu device, two kernels at a time."""
    chosen = targets.choose(cpu_features())
    kernels: dict[str, Kernel | CompiledFunction] = {}
    for name in {path.stem.partition("@")[0] for path in RESULTS}:
        with open_model(DATA / f"{name}.gguf") as model:
            pairs = [(chosen, kv) for kv in get_args(KVKind)]
            pairs += itertools.product(DISTINCT, SINGLE_KINDS) if name in OF_ALL_ISAS else []
            for isa, kv in pairs:
                own = kernels_of(model.spec, model.file.tensors, kv, isa)
                kernels |= {kernel.name: kernel for kernel in own}
    kernel_library().prepare(list(kernels.values()), 2, no_progress)
