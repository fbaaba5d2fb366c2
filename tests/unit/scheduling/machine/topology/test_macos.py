"""Macs from the values that sysctl prints."""

import sys

import pytest

from edgeinfer.scheduling.machine.topology.macos import read_values, topology_of
from edgeinfer.scheduling.machine.topology.memory import MachineMemory

MEMORY = MachineMemory(16 << 30, 9 << 30)
M1_PRO = {
    "hw.nperflevels": 2,
    "hw.physicalcpu": 10,
    "hw.logicalcpu": 10,
    "hw.perflevel0.name": "Performance",
    "hw.perflevel0.physicalcpu": 8,
    "hw.perflevel0.logicalcpu": 8,
    "hw.perflevel0.l2cachesize": 12582912,
    "hw.perflevel0.cpusperl2": 4,
    "hw.perflevel1.name": "Efficiency",
    "hw.perflevel1.physicalcpu": 2,
    "hw.perflevel1.logicalcpu": 2,
    "hw.perflevel1.l2cachesize": 4194304,
    "hw.perflevel1.cpusperl2": 2,
    "hw.l2cachesize": 4194304,
}
MACBOOK_I7 = {
    "hw.physicalcpu": 6,
    "hw.logicalcpu": 12,
    "hw.l2cachesize": 262144,
    "hw.l3cachesize": 12582912,
    "hw.cpufrequency_max": 2600000000,
}


def test_apple_silicon():
    machine = topology_of(M1_PRO, MEMORY)
    assert [core.kind for core in machine.cores] == ["performance"] * 8 + ["efficiency"] * 2
    assert [core.l2 for core in machine.cores] == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2]
    assert {core.l3 for core in machine.cores} == {-1}
    assert machine.workers() == tuple(range(10))
    assert (machine.smt, machine.quota, machine.n_installed) == (False, None, 10)
    assert (machine.l2_bytes, machine.l3_bytes) == (12582912, 0)
    (node,) = machine.nodes
    assert (node.cores, node.total_bytes, node.free_bytes) == (tuple(range(10)), 16 << 30, 9 << 30)
    assert (machine.total_bytes, machine.available_bytes) == (16 << 30, 9 << 30)


def test_intel():
    machine = topology_of(MACBOOK_I7, MEMORY)
    assert [core.cpus for core in machine.cores] == [(cpu, cpu + 1) for cpu in range(0, 12, 2)]
    assert machine.workers() == (0, 2, 4, 6, 8, 10)
    assert [core.l2 for core in machine.cores] == [0, 1, 2, 3, 4, 5]
    assert {core.l3 for core in machine.cores} == {0}
    assert {core.max_hz for core in machine.cores} == {2.6e9}
    assert (machine.smt, machine.n_installed, machine.l3_bytes) == (True, 12, 12582912)


def test_a_second_fast_level_is_of_performance_cores():
    machine = topology_of(M1_PRO | {"hw.perflevel0.name": "Super", "hw.perflevel1.name": "Performance"}, MEMORY)
    assert {core.kind for core in machine.cores} == {"performance"}


def test_a_level_without_a_name_is_told_by_its_place():
    unnamed = {name: value for name, value in M1_PRO.items() if not name.endswith(".name")}
    assert [core.kind for core in topology_of(unnamed, MEMORY).cores] == ["performance"] * 8 + ["efficiency"] * 2


@pytest.mark.parametrize("values", [{}, {"hw.nperflevels": 9**9}, {"hw.physicalcpu": -3, "hw.logicalcpu": "many"}])
def test_values_that_make_no_sense_leave_one_core(values):
    assert topology_of(values, MEMORY).workers() == (0,)


@pytest.mark.skipif(sys.platform != "darwin", reason="macOS only")
def test_this_mac():
    assert read_values()["hw.physicalcpu"] == len(topology_of(read_values(), MEMORY).cores)
