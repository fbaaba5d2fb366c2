"""Execution providers by name, and what is said where something is missing."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

from edgeinfer.backends.base import DeviceOptions, kind_of, open_device
from edgeinfer.errors import BadSetting, DeviceUnavailable

pytest.importorskip("onnx.helper")
pytest.importorskip("onnxruntime")
from edgeinfer.backends.onnx.session import providers_for

REPORTED = ("CUDAExecutionProvider", "AzureExecutionProvider", "CPUExecutionProvider")


def test_targets_are_what_the_runtime_reports() -> None:
    assert providers_for("", REPORTED) == ("CPUExecutionProvider",)
    assert providers_for("cpu", REPORTED) == ("CPUExecutionProvider",)
    assert providers_for("CUDA", REPORTED) == ("CUDAExecutionProvider", "CPUExecutionProvider")


def test_a_missing_provider_is_named_with_those_there_are_and_its_package() -> None:
    with pytest.raises(DeviceUnavailable, match=r"'dml'.*onnx:cpu, onnx:cuda.*pip install onnxruntime-directml"):
        providers_for("dml", REPORTED)
    with pytest.raises(DeviceUnavailable, match=r"'abacus'; it has: onnx:cpu, onnx:cuda$"):
        providers_for("abacus", REPORTED)


def test_a_provider_that_sends_data_away_is_not_used() -> None:
    with pytest.raises(DeviceUnavailable, match="'azure'"):
        providers_for("azure", REPORTED)


def test_missing_packages_are_named_with_what_installs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "onnx" else find(name, *rest))
    with pytest.raises(DeviceUnavailable, match=r"needs .*onnx, not installed here: pip install 'edgeinfer\[onnx\]'"):
        open_device("onnx")


def test_the_entry_loads_no_runtime() -> None:
    code = (
        "import sys; from edgeinfer.backends.base import DEVICES; DEVICES.get('onnx'); "
        "print([name for name in ('onnx', 'onnxruntime', 'numba') if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
    assert kind_of("onnx:cpu").key == "onnx"


def test_impossible_threads_and_cores_are_refused() -> None:
    with pytest.raises(BadSetting, match="0 threads"):
        open_device("onnx", DeviceOptions(n_workers=0))
    with pytest.raises(BadSetting, match="core 9999 cannot be used"):
        open_device("onnx", DeviceOptions(cores=(9999,)))
    device = open_device("onnx:cpu", DeviceOptions(n_workers=1))
    assert device.name == "onnx:cpu"
    assert not device.batch_invariant
    device.close()
