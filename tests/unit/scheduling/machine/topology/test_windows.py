"""Windows machines from buffers with the structures of winnt.h, as a C compiler lays them out."""

import ctypes
import sys

import pytest

from edgeinfer.scheduling.machine.topology.memory import MachineMemory
from edgeinfer.scheduling.machine.topology.windows import parse_records, read_windows, topology_of
from tests.platforms.windows_structures import CACHE, CORE, GROUP, NODE, PACKAGE, Record, record

MEMORY = MachineMemory(32 << 30, 20 << 30)
MIB = 1 << 20


def meteor_lake() -> bytes:
    """2 performance cores with two threads, 4 efficiency cores, 2 low-power ones apart from the third-level cache."""
    return b"".join(
        [
            *(record(CORE, cpus=cpus, efficiency_class=1) for cpus in ((0, 1), (2, 3))),
            *(record(CORE, cpus=(cpu,)) for cpu in range(4, 10)),
            *(record(CACHE, cpus=cpus, level=1, n_bytes=48 << 10, kind=2) for cpus in ((0, 1), (2, 3))),
            *(record(CACHE, cpus=cpus, level=2, n_bytes=2 * MIB) for cpus in ((0, 1), (2, 3), range(4, 8), (8, 9))),
            record(CACHE, cpus=range(8), level=3, n_bytes=12 * MIB),
            record(PACKAGE, cpus=range(10)),
            record(NODE, cpus=range(10)),
            record(GROUP, cpus=()),
        ]
    )


def test_hybrid_laptop():
    machine = topology_of(parse_records(meteor_lake()), MEMORY)
    assert [core.cpus for core in machine.cores] == [(0, 1), (2, 3), (4,), (5,), (6,), (7,), (8,), (9,)]
    assert [core.kind[0] for core in machine.cores] == [*"ppeeeell"]
    assert [core.l2 for core in machine.cores] == [0, 1, 2, 2, 2, 2, 3, 3]
    assert [core.l3 for core in machine.cores] == [0, 0, 0, 0, 0, 0, -1, -1]
    assert (machine.l2_bytes, machine.l3_bytes) == (2 * MIB, 12 * MIB)
    assert machine.workers() == (0, 2, 4, 5, 6, 7)
    assert (machine.n_installed, machine.smt, machine.quota) == (10, True, None)
    (node,) = machine.nodes
    assert (node.cores, node.total_bytes, node.free_bytes) == ((0, 2, 4, 5, 6, 7, 8, 9), 32 << 30, 20 << 30)


def test_affinity():
    told = parse_records(meteor_lake())
    assert [core.cpus for core in topology_of(told, MEMORY, {1, 4}).cores] == [(1,), (4,)]
    assert topology_of(told, MEMORY, {8, 9}).workers() == (8, 9)
    assert topology_of(told, MEMORY, {3, 2, 0}).nodes[0].cores == (0, 2)
    assert len(topology_of(told, MEMORY, {63}).cores) == 8, "a mask that fits no core is not believed"


def test_two_packages_in_two_processor_groups():
    """96 cores without siblings: group 0 has the first 48, group 1 the others."""
    first, second = range(48), range(64, 112)
    buffer = b"".join(
        [
            *(record(CORE, cpus=(cpu,)) for cpu in (*second, *first)),
            *(record(PACKAGE, cpus=cpus) for cpus in (first, second)),
            *(record(CACHE, cpus=cpus, level=3, n_bytes=96 * MIB) for cpus in (first, second)),
            *(record(NODE, cpus=cpus, node=node) for node, cpus in enumerate((first, second))),
        ]
    )
    machine = topology_of(parse_records(buffer), MEMORY, free_bytes={0: 5 << 30})
    assert machine.workers() == (*first, *second)
    assert [(node.number, node.cores, node.free_bytes) for node in machine.nodes] == [
        (0, tuple(first), 5 << 30),
        (1, tuple(second), None),
    ]
    assert [core.package for core in machine.cores] == [0] * 48 + [1] * 48
    assert [core.l3 for core in machine.cores] == [0] * 48 + [1] * 48
    assert not machine.smt


def test_a_cache_and_a_node_over_two_groups():
    both = (*range(4), *range(64, 68))
    buffer = b"".join(
        [
            *(record(CORE, cpus=(cpu,)) for cpu in both),
            record(CACHE, cpus=both, level=3, n_bytes=64 * MIB),
            record(6, cpus=both, node=3),
        ]
    )
    machine = topology_of(parse_records(buffer), MEMORY)
    assert {core.l3 for core in machine.cores} == {0}
    assert [(node.number, node.cores) for node in machine.nodes] == [(3, both)]


def test_instruction_caches_are_not_shared_data():
    buffer = record(CORE, cpus=(0,)) + record(CACHE, cpus=(0,), level=2, n_bytes=MIB, kind=1)
    assert topology_of(parse_records(buffer), MEMORY).l2_bytes == 0


def test_no_count_of_masks_means_one():
    """Before Windows 10 20H2 the bytes of the count were reserved."""
    made = Record.from_buffer_copy(record(NODE, cpus=(0, 1), node=1))
    made.Body.NumaNode.GroupCount = 0
    assert parse_records(bytes(made)).nodes == ((1, (0, 1)),)


@pytest.mark.parametrize("n_bytes", [0, 3, 7, 8, 20, ctypes.sizeof(Record) - 1, ctypes.sizeof(Record) + 9])
def test_a_buffer_cut_short_gives_what_is_whole(n_bytes):
    n_whole = n_bytes // ctypes.sizeof(Record)
    assert len(parse_records(meteor_lake()[:n_bytes]).cores) == n_whole


def test_a_record_that_claims_no_size_ends_the_buffer():
    assert parse_records(bytes(64)).cores == ()


@pytest.mark.skipif(sys.platform != "win32", reason="Windows only")
def test_this_machine():
    assert read_windows().workers()
