"""Replicas on one computer share its cores out."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeinfer.app.cluster.claimed_cores import ClaimedCores, share_of
from edgeinfer.scheduling.machine.topology import Core, Node, Topology

GB = 1 << 30


def topology(*nodes: int, threads: int = 1) -> Topology:
    """A computer with these many cores on each NUMA node."""
    cores: list[Core] = []
    for node, n_cores in enumerate(nodes):
        for _ in range(n_cores):
            first = len(cores) * threads
            cpus = tuple(range(first, first + threads))
            cores.append(Core(cpus, "performance", node, node, len(cores), node, None))
    listed = tuple(
        Node(number, tuple(core.number for core in cores if core.node == number), GB, GB, ())
        for number in range(len(nodes))
    )
    return Topology(tuple(cores), listed, len(cores) * threads, None, threads > 1, 0, 0, GB, GB)


@pytest.mark.parametrize(
    ("machine", "n_cpus", "share"),
    [
        (topology(8), 8, None),
        (topology(8), 4, 4),
        (topology(8, threads=2), 8, 4),
        (topology(4, 4), 1, 1),
        (topology(2), 0.1, 1),
        (topology(2), 100, None),
    ],
)
def test_the_share_of_a_replica(machine: Topology, n_cpus: float, share: int | None) -> None:
    assert share_of(machine, n_cpus) == share


def test_no_core_is_taken_twice(tmp_path: Path) -> None:
    machine = topology(4, 4)
    claims = [ClaimedCores(machine, 3, tmp_path) for _ in range(2)]
    assert [len(claim.cores) for claim in claims] == [3, 3]
    assert not set(claims[0].cores) & set(claims[1].cores)


def test_cores_of_one_node_are_taken_together(tmp_path: Path) -> None:
    machine = topology(4, 4)
    first, second = ClaimedCores(machine, 4, tmp_path), ClaimedCores(machine, 4, tmp_path)
    assert {first.cores, second.cores} == {(0, 1, 2, 3), (4, 5, 6, 7)}


def test_the_node_with_just_enough_is_taken_first(tmp_path: Path) -> None:
    machine = topology(6, 2)
    assert ClaimedCores(machine, 2, tmp_path).cores == (6, 7)


def test_what_others_hold_is_missing_until_they_end(tmp_path: Path) -> None:
    machine = topology(4)
    first = ClaimedCores(machine, 3, tmp_path)
    assert len(ClaimedCores(machine, 4, tmp_path).cores) == 1
    first.close()
    assert len(first.cores) == 0
    assert len(ClaimedCores(machine, 3, tmp_path).cores) == 3
