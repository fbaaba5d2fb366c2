"""The machines that come with edgeinfer: they can be read, say what they assume, and are possible."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeinfer.errors import BadSetting
from edgeinfer.scheduling.cost.seconds import DeviceCost
from edgeinfer.scheduling.cost.work import MatMulWork
from edgeinfer.scheduling.machine.catalogue import FOLDER, machine_names, machine_profile
from edgeinfer.scheduling.machine.profile_file import parse_profile, profile_text

WANTED = {"t4-xeon8", "a10-16core", "rtx4060-laptop", "arc-laptop", "xeon-2node", "raspberry-pi-5", "cloud-2core"}
DATA_SHEET_GB_S = {
    "NVIDIA T4": 320,
    "NVIDIA A10": 600,
    "NVIDIA RTX 4060 Laptop": 256,
    "Intel Arc Graphics, 8 Xe cores": 120,
}


def test_the_wanted_machines_are_there():
    assert set(machine_names()) >= WANTED


@pytest.mark.parametrize("name", sorted(WANTED))
def test_a_machine_is_found_by_name_and_by_path_and_written_back(name: str):
    profile = machine_profile(name)
    assert profile.name == name
    assert machine_profile(FOLDER / f"{name}.toml") == profile
    assert machine_profile(str(FOLDER / f"{name}.toml")) == profile
    assert parse_profile(profile_text(profile), name) == profile


@pytest.mark.parametrize("name", sorted(WANTED))
def test_an_imagined_machine_says_what_it_assumes(name: str):
    profile = machine_profile(name)
    assert not profile.fingerprint
    assert not profile.measured
    assert len(profile.assumptions) >= 3


@pytest.mark.parametrize("name", sorted(WANTED))
def test_rates_are_below_the_data_sheets(name: str):
    for device in machine_profile(name).accelerators:
        assert device.read.values[-1] < DATA_SHEET_GB_S[device.kind] * 1e9
        assert device.link is None or device.link.to_device_bytes_s < device.read.values[-1]


@pytest.mark.parametrize("name", sorted(WANTED))
def test_one_token_is_bound_by_memory_and_a_long_prompt_by_arithmetic(name: str):
    product = MatMulWork("ffn_up", "Q4_0", 0.5625, 11008, 4096)
    for device in machine_profile(name).devices:
        cost = DeviceCost(device, 4e9)
        decode, prompt = (cost.product(product, product.n_rows, n_tokens) for n_tokens in (1, 2048))
        assert decode.memory > decode.arithmetic
        assert prompt.arithmetic > prompt.memory
        assert decode.total >= product.n_bytes / device.read.values[-1]


@pytest.mark.parametrize(("name", "hint"), [("t4-xeon", "did you mean 't4-xeon8'?"), ("abacus", "raspberry-pi-5")])
def test_a_miss_lists_what_there_is(name: str, hint: str):
    with pytest.raises(BadSetting) as missed:
        machine_profile(name)
    assert hint in str(missed.value)


def test_a_path_that_leads_nowhere():
    with pytest.raises(BadSetting, match="cannot be read"):
        machine_profile(Path("nowhere") / "t4-xeon8")
