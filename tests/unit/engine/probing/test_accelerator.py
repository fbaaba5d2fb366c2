"""Rates of devices that run fragments, and of combinations of devices: measured, kept, shared out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from edgeinfer.backends.base import DeviceOptions
from edgeinfer.backends.reference import ReferenceDevice
from edgeinfer.engine.measure.profiles import ProfileStore, fingerprint_of
from edgeinfer.engine.opening.plan_choice import choose
from edgeinfer.engine.probing import accelerator, combination, link
from edgeinfer.engine.probing.accelerator import AcceleratorProbe, Amount
from edgeinfer.engine.probing.combination import combined_profile, cores_of, kept_combination, on_host, options_for
from edgeinfer.engine.probing.link import measured_link
from edgeinfer.engine.probing.synthetic import ModelShape
from edgeinfer.errors import BadSetting, DeviceUnavailable, UnknownKey
from edgeinfer.models.load import open_model
from edgeinfer.scheduling.cost.work import work_of
from edgeinfer.scheduling.machine.profile import CPU, CoreRates, Curve, DeviceRates, Link, NodeRates, ProductRates
from edgeinfer.scheduling.machine.topology import Topology, read_topology
from edgeinfer.scheduling.placement.budgets import Budgets, Caching
from edgeinfer.scheduling.workers.shared_rates import side_by_side
from edgeinfer.steps import no_progress
from tests.golden.goldens import Golden
from tests.unit.scheduling.profiles import GB, device, machine

FEW = Amount({1: 3, 4: 1}, (8, 16), 1, 1, 1)
FOOTPRINT = 1 << 20


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference device is slow: small models, few runs, shallow caches."""
    monkeypatch.setattr(accelerator, "SLIM", ModelShape(256, 512, 4, 2, 64, 1, 256, 256))
    monkeypatch.setattr(accelerator, "BROAD", ModelShape(768, 1024, 4, 2, 64, 1, 256, 256))
    monkeypatch.setattr(link, "EXCHANGE_RUNS", {1: 2, 8: 1})
    monkeypatch.setattr(combination, "USUAL", FEW)
    monkeypatch.setattr(combination, "footprint", lambda topology: FOOTPRINT)


@pytest.fixture
def topology(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Topology:
    """This machine, whose profile is made up, in a folder of its own."""
    found = read_topology()
    monkeypatch.setenv("EDGEINFER_HOME", str(tmp_path))
    monkeypatch.setattr(combination, "ProfileStore", lambda: ProfileStore(tmp_path))
    cores = tuple(CoreRates(number, "performance", 0, 10 * GB, 1.0) for number in found.workers())
    cpu = replace(device(), cores=cores, nodes=(NodeRates(0, 1 << 40, 12 * GB),))
    ProfileStore(tmp_path).save(replace(machine(cpu=cpu), fingerprint=fingerprint_of(found)))
    return found


def measured(form: str = "Q4_0") -> DeviceRates:
    device = ReferenceDevice()
    probe = AcceleratorProbe(device, FOOTPRINT, FEW)
    return probe.rates("reference", "numpy", 1 << 30, (form,), measured_link(device, form))


@pytest.mark.parametrize("form", ["Q4_0", "F16"])
def test_every_rate_is_measured(form: str) -> None:
    found = measured(form)
    assert found.link is not None
    assert found.link.latency_s > 0
    assert found.link.to_device_bytes_s > 0
    assert found.link.from_device_bytes_s > 0
    product = found.products[form]
    assert product.rate.at == (1, 4, 8, 16)
    assert min(product.rate.values) > 1e6
    assert found.attention[0].cached_only
    assert found.attention[0].rate.at == (1, 4, 16)
    assert found.joining is None
    assert found.pass_s >= 0
    assert found.op_s >= 0


def test_a_combination_is_measured_once_and_kept(topology: Topology, monkeypatch: pytest.MonkeyPatch) -> None:
    names, cores = (CPU, "reference"), topology.workers()
    if len(cores) < 2:
        pytest.skip("two devices on the machine's own cores need two of them")
    assert kept_combination(names, topology, cores) is None
    first = combined_profile(names, topology, cores, ("Q4_0",), no_progress)
    assert [each.name for each in first.devices] == list(names)
    assert len(first.cpu.cores) == len(cores) // 2
    monkeypatch.setattr(combination, "accelerator_rates", None)
    again = combined_profile(names, topology, cores, ("Q4_0",), no_progress)
    assert again.accelerators == first.accelerators == kept_combination(names, topology, cores).accelerators
    assert again == first
    swapped = combined_profile(names[::-1], topology, cores, ("Q4_0",), no_progress)
    assert swapped == first
    with pytest.raises(TypeError):  # another format is not known yet
        combined_profile(names, topology, cores, ("Q8_0",), no_progress)
    with pytest.raises(TypeError):  # nor are other cores
        combined_profile(names, topology, cores[::-1], ("Q4_0",), no_progress)


def test_further_formats_join_those_that_are_known(topology: Topology, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []

    def rates(
        name: str, options: DeviceOptions, where: Topology, formats: tuple[str, ...], host: DeviceOptions | None
    ) -> DeviceRates:
        assert host is None
        asked.append(formats)
        return replace(device(name), products=dict.fromkeys(formats, ProductRates(2.0, Curve.level(1e9))))

    monkeypatch.setattr(combination, "accelerator_rates", rates)
    for formats in (("Q4_0",), ("Q8_0",), ("Q4_0", "Q8_0"), ("Q4_0",)):
        found = combined_profile(("reference",), topology, topology.workers(), formats, no_progress)
    assert asked == [("Q4_0",), ("Q8_0",)]
    assert set(found.device("reference").products) == {"Q4_0", "Q8_0"}


def test_a_device_alone_has_all_cores_and_all_memory_gives(topology: Topology) -> None:
    cores = topology.workers()
    found = combined_profile(("reference",), topology, cores, ("Q4_0",), no_progress)
    assert len(found.cpu.cores) == len(cores)
    assert found.device("reference").read.values[0] > 0


def test_cores_are_shared_among_devices_on_the_machine() -> None:
    assert cores_of((CPU, "openvino"), (0, 1, 2, 3)) == {CPU: (0, 1), "openvino": (2, 3)}
    assert cores_of((CPU, "openvino"), (4, 5, 6)) == {CPU: (4,), "openvino": (5, 6)}
    assert cores_of((CPU, "openvino:gpu"), (0, 1)) == {CPU: (0, 1)}
    with pytest.raises(BadSetting, match="share 1 cores"):
        cores_of((CPU, "openvino"), (0,))
    shares = cores_of((CPU, "openvino:gpu"), (0, 1))
    assert options_for(CPU, shares, DeviceOptions()).cores == (0, 1)
    assert options_for("openvino:gpu", shares, DeviceOptions(n_workers=7)).n_workers == 7


def test_who_computes_on_the_machines_cores() -> None:
    assert on_host("cpu")
    assert on_host("openvino")
    assert not on_host("openvino:gpu")
    with pytest.raises(UnknownKey):
        on_host("abacus")


def test_devices_that_take_no_parts_cannot_be_measured(topology: Topology) -> None:
    with pytest.raises(DeviceUnavailable, match="null cannot run part"):
        combination.accelerator_rates("null", DeviceOptions(), topology, ("Q4_0",))


def test_together_devices_read_no_more_than_memory_gives() -> None:
    other = device("other", read=10 * GB, madds=20e9)
    together = side_by_side(machine(other), ("other",), 12 * GB)
    for rates in together.devices:
        assert rates.read.values == (6 * GB,)
        assert rates.products["*"].rate(1) == pytest.approx(12e9)
        assert rates.products["*"].weights_read_s == pytest.approx(12e9)
    assert side_by_side(machine(other), ("other",), 100 * GB) == machine(other)
    assert side_by_side(machine(other), (), 1 * GB) == machine(other)


def test_arithmetic_is_each_ones_own() -> None:
    rates = ProductRates(2.0, Curve((1, 64), (1e9, 20e9)))
    other = replace(device("other"), products={"*": rates})
    together = side_by_side(machine(other), ("other",), 10 * GB)
    assert together.device("other").products["*"].rate.values == (0.5e9, 20e9)


def test_the_cpu_is_preferred_where_it_is_faster_alone() -> None:
    golden = Golden.read("llama-q8_0")
    with open_model(golden.model, 128) as model:
        work = work_of(model.spec, model.file.tensors)
    caching, budgets = Caching(128), Budgets(1e12, {"other": 1e12})
    slow = machine(device("other", madds=1e8, link=Link(1e9, 1e9, 1e-3)))
    fast = machine(device("other", madds=1e13, read=1e13, link=Link(1e12, 1e12, 1e-9)))
    alone = {CPU: machine()}
    first = choose(slow, alone, work, caching, budgets)
    assert first.prefers_one
    assert first.best_alone == CPU
    chosen = choose(fast, alone, work, caching, budgets)
    assert not chosen.prefers_one
    assert "other" in chosen.devices
    assert chosen.together.seconds < chosen.alone[CPU].seconds
    faster = machine(device("other", madds=1e15, read=1e15, link=Link(1e12, 1e12, 1e-9)))
    again = choose(fast, {**alone, "other": faster}, work, caching, budgets)
    assert again.prefers_one  # than both with their shares of the machine is the other with all of it
    assert again.best_alone == "other"


def test_prompts_count_where_devices_are_chosen() -> None:
    golden = Golden.read("llama-q8_0")
    with open_model(golden.model, 1024) as model:
        work = work_of(model.spec, model.file.tensors)
    caching, budgets = Caching(1024), Budgets(1e12, {"other": 1e12})
    together = machine(device("other", madds=1e13, read=1e13, link=Link(1e12, 1e12, 1e-9)))
    reader = replace(device("other", read=1e12, link=Link(1e12, 1e12, 1e-9)), pass_s=1e-3)
    quick = ProductRates(2.0, Curve((1, 256), (1e12, 1e14)))
    alone = {CPU: machine(), "other": machine(replace(reader, products={"*": quick}))}
    found = choose(together, alone, work, caching, budgets)
    assert found.together.n_decoded == 128
    assert found.together.token_s == pytest.approx(found.plan.seconds, rel=0.2)
    assert found.alone["other"].token_s > 1e-3  # every pass of one token takes that, and only two of the prompt
    assert found.alone["other"].prompt_s < found.alone["other"].n_decoded * found.alone["other"].token_s
    slow_reader = {"other": machine(replace(reader, pass_s=0.0, token_s=1.0))}
    again = choose(together, slow_reader, work, caching, budgets)
    assert not again.prefers_one
    assert again.alone["other"].prompt_s == pytest.approx(512, rel=0.01)
