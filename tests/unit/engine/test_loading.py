"""Loading a model where something is not as it was thought to be: devices that cannot load, schedules without use."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeinfer.backends.base import Device, DeviceOptions
from edgeinfer.engine import loading
from edgeinfer.engine.loading import load
from edgeinfer.engine.opening import device_choice, devices
from edgeinfer.engine.opening.device_choice import Choices, ChosenDevice, DeviceChoice
from edgeinfer.errors import BadSetting, DeviceFailed, DeviceUnavailable, DoesNotFit, EdgeInferError, UnsupportedModel
from edgeinfer.setting_values import Race

REASONS = [
    DeviceUnavailable("the driver is gone"),
    DeviceFailed("the driver was reset"),
    DoesNotFit("2 GB too much"),
    UnsupportedModel("it has no such op"),
]


def choose(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    """Let this device have won the race."""
    monkeypatch.setattr(loading, "chosen_device", lambda *given, **others: ChosenDevice(device))


@pytest.mark.parametrize("reason", REASONS)
def test_where_the_fastest_device_cannot_load_the_cpu_does(
    tiny_model: Path, home: Path, monkeypatch: pytest.MonkeyPatch, reason: EdgeInferError
) -> None:
    """The answer is the cpu's, the reason is told, and the device is not chosen again."""
    with load(tiny_model, device="cpu", threads=1, spec="off") as llm:
        expected = llm.complete("the rain", max_tokens=8, temperature=0).read()
    opened: list[str] = []
    open_device = devices.open_device

    def refusing(name: str, options: DeviceOptions) -> Device:
        opened.append(name)
        if name == "onnx":
            raise reason
        return open_device(name, options)

    choose(monkeypatch, "onnx")
    monkeypatch.setattr(devices, "open_device", refusing)
    Choices().keep("this model", DeviceChoice("onnx"))
    Choices().keep("another", DeviceChoice("cpu"))
    with load(tiny_model, threads=1, spec="off") as llm:
        assert llm.info.device == "cpu"
        assert llm.complete("the rain", max_tokens=8, temperature=0).read() == expected
        assert llm.info.notices == (f"onnx, the fastest for this model, cannot run it ({reason}): the cpu does",)
    assert opened == ["onnx", "cpu"]
    assert Choices().find("this model") is None
    assert Choices().find("another") == DeviceChoice("cpu")


@pytest.mark.parametrize("race", ["first", "after"])
def test_where_devices_cannot_be_compared_the_cpu_runs_the_model(
    tiny_model: Path, home: Path, monkeypatch: pytest.MonkeyPatch, race: Race
) -> None:
    """The folder that compares devices may be missing."""
    monkeypatch.setattr(device_choice, "LEAST_BYTES", 0)
    monkeypatch.setattr(device_choice, "_installed", lambda: ["onnx:1"])
    monkeypatch.setattr(loading, "RACING", f"{loading.RACING}_moved")
    with load(tiny_model, threads=1, spec="off", race=race) as llm:
        assert llm.info.device == "cpu"
        assert device_choice.CANNOT_COMPARE in llm.info.notices
        assert llm.comparison is None


def test_where_the_cpu_cannot_load_nothing_else_is_tried(
    tiny_model: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    def refusing(name: str, options: DeviceOptions) -> Device:
        opened.append(name)
        raise DeviceUnavailable("no such instructions")

    choose(monkeypatch, "cpu")
    monkeypatch.setattr(devices, "open_device", refusing)
    with pytest.raises(DeviceUnavailable, match="no such instructions"):
        load(tiny_model, threads=1, spec="off")
    assert opened == ["cpu"]


def test_a_device_that_was_asked_for_is_not_replaced(
    tiny_model: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing(name: str, options: DeviceOptions) -> Device:
        raise DeviceUnavailable("the driver is gone")

    monkeypatch.setattr(devices, "open_device", refusing)
    with pytest.raises(DeviceUnavailable, match="the driver is gone"):
        load(tiny_model, device="onnx", threads=1, spec="off")


def test_a_schedule_for_one_device_is_said_to_change_nothing(tiny_model: Path, home: Path) -> None:
    with load(tiny_model, device="reference", schedule="hetegen", spec="off") as llm:
        (notice,) = llm.info.notices
    assert notice.startswith("schedule hetegen says how several devices share a model and changes nothing on reference")
    assert "--device cpu,openvino" in notice
    with load(tiny_model, device="reference", spec="off") as llm:
        assert llm.info.notices == ()


def test_several_devices_need_the_cpu(tiny_model: Path, home: Path) -> None:
    with pytest.raises(BadSetting, match="several devices need the cpu among them"):
        load(tiny_model, device="openvino,onnx", spec="off")
