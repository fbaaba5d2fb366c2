"""Models opened on two devices by name: shared, or refused with the reason, as what was measured of them says."""

from __future__ import annotations

import dataclasses

import pytest

from edgeinfer.backends.base import DeviceOptions, Limits
from edgeinfer.backends.capabilities import DeviceCapabilities
from edgeinfer.engine.opening import devices
from edgeinfer.engine.opening.devices import OpeningRequest, open_model
from edgeinfer.engine.probing import combination
from edgeinfer.engine.shared_lane.lane import SharedLane
from edgeinfer.errors import BadSetting
from edgeinfer.models import load
from edgeinfer.scheduling.machine.profile import Link, Profile
from edgeinfer.scheduling.machine.topology import read_topology
from tests.golden.goldens import Golden, Player, distance
from tests.unit.scheduling.profiles import GB, device, machine

LIMITS = Limits(128, 4, 64, 8)
GOLDEN = Golden.read("llama-q8_0")
PAIR = "reference,cpu"
needs_two_cores = pytest.mark.skipif(len(read_topology().workers()) < 2, reason="two devices need a core each")


def profile(speed: float, latency_s: float) -> Profile:
    """A CPU and another device, both so fast."""
    link = Link(100 * GB, 100 * GB, latency_s)
    rates = {"read": speed * GB, "madds": speed * 1e9}
    return machine(device("reference", link=link, **rates), cpu=device(**rates))


def measured(monkeypatch: pytest.MonkeyPatch, *, together: float, alone: float, latency_s: float) -> None:
    """Let probes have found these speeds."""
    each = {"cpu": profile(alone, latency_s), "reference": profile(alone / 10, latency_s)}
    monkeypatch.setattr(combination, "combined_profile", lambda *given: profile(together, latency_s))
    monkeypatch.setattr(combination, "alone_profiles", lambda *given: each)


@dataclasses.dataclass
class Found:
    """What came of opening: the device's name, whether the model is shared, what was told, how far off logits are."""

    name: str
    is_shared: bool
    told: str
    error: float


def opened(schedule: str = "auto") -> Found:
    with load.open_model(GOLDEN.model, GOLDEN.n_context) as model:
        limits = Limits(GOLDEN.n_context, 12, 256, 256)
        found = open_model(PAIR, OpeningRequest(model.spec, model.file, limits), schedule)
        player = Player(_Ready(found.lane), GOLDEN)  # type: ignore[arg-type]
        with player:
            error = distance(player.feed(GOLDEN.tokens[:9])[:, GOLDEN.columns], GOLDEN.logits[:9])
        name, is_shared = found.device.name, isinstance(found.lane, SharedLane)
        found.device.close()
        (told,) = found.notices
        return Found(name, is_shared, told, error)


class _Ready:
    """A device whose lane is there."""

    def __init__(self, lane: object) -> None:
        self._lane = lane

    def compile(self, *given: object) -> object:
        return self._lane


@needs_two_cores
def test_a_pair_that_is_slower_than_one_is_refused_with_both_speeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take each other's memory bandwidth, and every exchange takes a millisecond."""
    measured(monkeypatch, together=5, alone=10, latency_s=1e-3)
    found = opened()
    assert found.name == "cpu"
    assert not found.is_shared
    assert found.told.startswith("cpu+reference is predicted to decode ")
    assert "it runs on cpu alone; --schedule rows uses them together all the same" in found.told
    pair, alone = (int(word) for word in found.told.replace(":", "").split() if word.isdecimal())
    assert pair <= alone
    assert found.error < 0.1


@needs_two_cores
def test_a_refused_pair_is_used_all_the_same_where_a_schedule_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    measured(monkeypatch, together=5, alone=10, latency_s=1e-3)
    found = opened("rows")
    assert found.is_shared
    assert found.name == "cpu+reference"
    assert found.told.startswith("cpu+reference by schedule rows is predicted to ")
    assert found.error < 0.1


@needs_two_cores
def test_a_pair_that_is_faster_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    measured(monkeypatch, together=0.01, alone=0.01, latency_s=0.0)
    found = opened()
    assert found.is_shared
    assert "by schedule auto" in found.told
    assert found.error < 0.1


def test_a_pair_without_the_cpu_is_refused() -> None:
    with load.open_model(GOLDEN.model, 128) as model, pytest.raises(BadSetting, match=r"cpu,reference,null"):
        open_model("reference,null", OpeningRequest(model.spec, model.file, LIMITS))


def test_a_mixture_of_experts_is_not_shared_by_devices() -> None:
    mixture = Golden.read("olmoe-f16").model
    with load.open_model(mixture, 128) as model, pytest.raises(BadSetting, match=r"mixture of experts.* --device cpu"):
        open_model("cpu,reference", OpeningRequest(model.spec, model.file, LIMITS))


class Sized:
    """A device that says how much memory it has."""

    def __init__(self, memory_bytes: int | None, closed: list[str]) -> None:
        self.memory_bytes, self._closed = memory_bytes, closed
        self.capabilities = DeviceCapabilities(memory=self)

    def close(self) -> None:
        self._closed.append("closed")


def test_what_a_device_may_use_now_is_asked_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit that was set, or what others have taken since it was measured, counts for the plan."""
    closed: list[str] = []
    sizes: dict[str, int | None] = {"cuda": 123, "openvino:gpu": None}
    monkeypatch.setattr(devices, "open_device", lambda name, options: Sized(sizes[name], closed))
    assert devices.own_memory(["cpu", "cuda", "openvino", "openvino:gpu"], DeviceOptions()) == {"cuda": 123}
    assert closed == ["closed"] * 2
