"""Cores, caches, nodes and memory of machines as their Linux shows them."""

import pytest

from edgeinfer.scheduling.machine.topology import Topology, read_topology
from tests.unit.scheduling.machine.topology.recorded import write_files

CPU = "sys/devices/system/cpu"
KIB, MIB = 1 << 10, 1 << 20


def groups(topology: Topology, name: str) -> list[tuple[int, ...]]:
    """Core numbers by equal `name`, in order of the groups' numbers."""
    numbers = sorted({getattr(core, name) for core in topology.cores})
    return [tuple(core.number for core in topology.cores if getattr(core, name) == number) for number in numbers]


def of_kind(topology: Topology, kind: str) -> tuple[int, ...]:
    return tuple(core.number for core in topology.cores if core.kind == kind)


def test_hybrid_laptop_with_smt(recorded):
    machine = read_topology(recorded("i7-12700h"))
    assert of_kind(machine, "performance") == (0, 2, 4, 6, 8, 10)
    assert of_kind(machine, "efficiency") == (12, 13, 14, 15, 16, 17, 18, 19)
    assert machine.cores[1].cpus == (2, 3)
    assert machine.workers() == (0, 2, 4, 6, 8, 10, *range(12, 20))
    assert groups(machine, "l2") == [(0,), (2,), (4,), (6,), (8,), (10,), (12, 13, 14, 15), (16, 17, 18, 19)]
    assert groups(machine, "l3") == [machine.workers()]
    assert (machine.l2_bytes, machine.l3_bytes) == (2048 * KIB, 24 * MIB)
    assert (machine.n_installed, machine.smt, machine.quota) == (20, True, None)
    assert [core.max_hz for core in machine.cores[:3]] == [4.6e9, 4.6e9, 4.7e9]
    assert (machine.total_bytes, machine.available_bytes) == (16093248 * KIB, 11874536 * KIB)


def test_hybrid_desktop_without_smt_uses_all_20_cores(recorded):
    """llama.cpp #28625: half of the threads taken for siblings, 4 of 20 used."""
    machine = read_topology(recorded("ultra7-265k"))
    assert of_kind(machine, "performance") == tuple(range(8))
    assert of_kind(machine, "efficiency") == tuple(range(8, 20))
    assert machine.workers() == tuple(range(20))
    assert not machine.smt


def test_efficiency_cores_that_all_lack_a_third_level_cache_are_no_island(recorded):
    machine = read_topology(recorded("ultra7-258v"))
    assert of_kind(machine, "efficiency") == (4, 5, 6, 7)
    assert machine.workers() == tuple(range(8))
    assert [core.l3 for core in machine.cores] == [0, 0, 0, 0, -1, -1, -1, -1]


def test_low_power_island_is_left_out(recorded):
    machine = read_topology(recorded("ultra7-155h"))
    assert of_kind(machine, "performance") == (0, 10, 12, 14, 16, 18)
    assert of_kind(machine, "efficiency") == tuple(range(2, 10))
    assert of_kind(machine, "low-power") == (20, 21)
    assert machine.workers() == (0, *range(2, 11), 12, 14, 16, 18)
    assert machine.n_installed == 22


def test_low_power_island_works_where_nothing_else_may(recorded):
    assert read_topology(recorded("ultra7-155h"), affinity=[20, 21]).workers() == (20, 21)


def test_low_power_island_that_the_system_names(recorded):
    names = {"sys/devices/cpu_atom/cpus": "4-5\n", "sys/devices/cpu_lowpower/cpus": "6-7\n"}
    machine = read_topology(write_files(recorded("ultra7-258v"), names))
    assert (of_kind(machine, "efficiency"), of_kind(machine, "low-power")) == ((4, 5), (6, 7))
    assert machine.workers() == (0, 1, 2, 3, 4, 5)


def test_two_chiplets_of_equal_cores(recorded):
    machine = read_topology(recorded("ryzen9-7950x"))
    assert of_kind(machine, "performance") == tuple(range(16)) == machine.workers()
    assert groups(machine, "l3") == [tuple(range(8)), tuple(range(8, 16))]
    assert (machine.l2_bytes, machine.l3_bytes) == (MIB, 32 * MIB)
    assert machine.cores[5].cpus == (5, 21)


@pytest.mark.parametrize("hidden", ["cpufreq/cpuinfo_max_freq", "acpi_cppc/highest_perf"])
def test_dense_cores_are_told_by_clocks_or_by_rankings(recorded, hidden):
    root = recorded("ryzen-ai-9-hx370")
    for path in root.glob(f"{CPU}/cpu*/{hidden}"):
        path.unlink()
    machine = read_topology(root)
    assert of_kind(machine, "performance") == (0, 1, 2, 3)
    assert of_kind(machine, "efficiency") == tuple(range(4, 12))
    assert groups(machine, "l3") == [(0, 1, 2, 3), tuple(range(4, 12))]


def test_rankings_of_equal_cores_are_no_kinds(recorded):
    root = recorded("ryzen9-7950x")
    for path in root.glob(f"{CPU}/cpu*/cpufreq/cpuinfo_max_freq"):
        path.unlink()
    assert set(of_kind(read_topology(root), "performance")) == set(range(16))


def test_two_node_server(recorded):
    machine = read_topology(recorded("xeon-4314-2s"))
    near, far = machine.nodes
    assert (near.number, near.cores, near.distances) == (0, tuple(range(16)), (10, 20))
    assert (far.number, far.cores, far.distances) == (1, tuple(range(16, 32)), (20, 10))
    assert (near.total_bytes, far.total_bytes) == (131467264 * KIB, 132104192 * KIB)
    assert near.free_bytes == (96234112 + 7123004 + 21987124 + 1201432) * KIB
    assert [core.node for core in machine.cores] == [core.package for core in machine.cores] == [0] * 16 + [1] * 16
    assert machine.workers() == tuple(range(32))
    assert groups(machine, "l3") == [tuple(range(16)), tuple(range(16, 32))]


def test_four_node_server_without_smt(recorded):
    machine = read_topology(recorded("epyc-7543-nps4"))
    assert [node.cores for node in machine.nodes] == [tuple(range(first, first + 8)) for first in (0, 8, 16, 24)]
    assert machine.nodes[2].distances == (12, 12, 10, 12)
    assert groups(machine, "l3") == [tuple(range(first, first + 4)) for first in range(0, 32, 4)]
    assert {core.package for core in machine.cores} == {0}
    assert machine.workers() == tuple(range(32))
    assert not machine.smt


def test_nodes_without_cores_and_nodes_without_memory(recorded):
    node = "sys/devices/system/node/node"
    added = {
        f"{node}1/meminfo": "Node 1 MemTotal:       0 kB\nNode 1 MemFree:        0 kB\n",
        f"{node}2/cpulist": "\n",
        f"{node}2/meminfo": "Node 2 MemTotal:       67108864 kB\nNode 2 MemFree:        67000000 kB\n",
        f"{node}2/distance": "14 24 10\n",
        "proc/self/status": "Cpus_allowed_list:\t0-63\nMems_allowed_list:\t0-2\n",
    }
    machine = read_topology(write_files(recorded("xeon-4314-2s"), added))
    _, bare, expander = machine.nodes
    assert (bare.cores, bare.total_bytes, bare.free_bytes) == (tuple(range(16, 32)), 0, 0)
    assert (expander.cores, expander.total_bytes, expander.distances) == ((), 64 << 30, (14, 24, 10))
    assert bare.distances == (), "two distances where there are three nodes"
    assert machine.workers() == tuple(range(32))


def test_a_core_that_two_nodes_list_belongs_to_the_first(recorded):
    emulated = {f"sys/devices/system/node/node{node}/cpulist": "0-3\n" for node in range(4)}
    machine = read_topology(write_files(recorded("raspberry-pi-5"), emulated))
    assert [node.cores for node in machine.nodes] == [(0, 1, 2, 3), (), (), ()]
    assert {core.node for core in machine.cores} == {0}


def test_raspberry_pi(recorded):
    machine = read_topology(recorded("raspberry-pi-5"))
    assert of_kind(machine, "performance") == machine.workers() == (0, 1, 2, 3)
    (node,) = machine.nodes
    assert (node.cores, node.total_bytes, node.free_bytes) == ((0, 1, 2, 3), 8256048 * KIB, 7310112 * KIB)


def test_big_little(recorded):
    machine = read_topology(recorded("rk3588"))
    assert of_kind(machine, "efficiency") == (0, 1, 2, 3)
    assert of_kind(machine, "performance") == (4, 5, 6, 7)
    assert machine.workers() == tuple(range(8))
    assert groups(machine, "package") == [(0, 1, 2, 3), (4, 5), (6, 7)]


def test_without_sysfs_cores_are_told_by_cpuinfo(recorded):
    machine = read_topology(recorded("masked"))
    assert [core.cpus for core in machine.cores] == [(0, 1), (2, 3), (4, 5)]
    assert machine.workers() == (0, 2, 4)
    assert (machine.n_installed, machine.smt) == (8, True)
    assert [core.l2 for core in machine.cores] == [0, 1, 2]
    assert {core.l3 for core in machine.cores} == {-1}
    assert machine.available_bytes == (3145728 + 65536 + 131072) * KIB, "kernels before 3.14 estimate nothing"


def test_without_anything_there_is_one_core(tmp_path):
    machine = read_topology(tmp_path)
    assert machine.workers() == (0,)
    assert (len(machine.nodes), machine.quota, machine.total_bytes, machine.available_bytes) == (1, None, 0, 0)


def test_offline_cpus_and_gaps_between_numbers(recorded):
    """Core 1 has one thread online, core 2 none; allowed lists name offline CPUs too."""
    machine = read_topology(write_files(recorded("i7-12700h"), {f"{CPU}/online": "0-1,3,6-19\n"}))
    assert [core.cpus for core in machine.cores[:3]] == [(0, 1), (3,), (6, 7)]
    assert machine.workers() == (0, 3, 6, 8, 10, *range(12, 20))
    assert machine.n_installed == 20


def test_affinity_keeps_one_thread_of_each_core_it_touches(recorded):
    machine = read_topology(recorded("i7-12700h"), affinity=[1, 2, 3, 15])
    assert [(core.number, core.cpus) for core in machine.cores] == [(1, (1,)), (2, (2, 3)), (15, (15,))]
    assert [core.kind for core in machine.cores] == ["performance", "performance", "efficiency"]
    assert [core.l2 for core in machine.cores] == [0, 1, 2]
    assert machine.nodes[0].cores == machine.workers() == (1, 2, 15)
    assert machine.smt


def test_affinity_counts_where_files_show_other_numbers(recorded):
    """Containers of LXC renumber the CPUs they show from 0 (ollama #5554)."""
    machine = read_topology(write_files(recorded("xeon-4314-2s"), {f"{CPU}/online": "0-1\n"}), affinity=[1, 40])
    assert machine.workers() == (1, 40)


def test_siblings_that_do_not_name_the_cpu_itself_are_not_believed(recorded):
    lists = {f"{CPU}/cpu{cpu}/topology/thread_siblings_list": "0\n" for cpu in range(8)}
    assert read_topology(write_files(recorded("rk3588"), lists)).workers() == tuple(range(8))
