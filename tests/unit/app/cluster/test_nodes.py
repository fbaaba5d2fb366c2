"""Which nodes compute the same, and which cores of a computer a node has."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from edgeinfer.app.cluster.batches import lines_per_block
from edgeinfer.app.cluster.nodes import ClusterNode, NodeBits, own_cores, reference_of
from edgeinfer.errors import EdgeInferError


def bits(digest: str, isa: str = "avx2") -> NodeBits:
    return NodeBits("0.1.0", "cpu", digest, isa, "x86_64", "0.61")


def node(name: str, *, is_driver: bool = False) -> ClusterNode:
    return ClusterNode(name, "host", 4, is_driver)


def test_the_reference_is_what_this_computer_computes_else_what_most_do() -> None:
    nodes = [node("a"), node("b"), node("c")]
    found = {"a": bits("1"), "b": bits("2"), "c": bits("2", "neon")}
    assert reference_of(nodes, found).digest == "2"
    assert reference_of([node("a", is_driver=True), *nodes[1:]], found).digest == "1"
    assert found["b"].decisive == found["c"].decisive  # the instruction set does not matter


def test_without_a_node_that_computes_the_reasons_are_told() -> None:
    with pytest.raises(EdgeInferError, match=r"no node of the cluster can answer: host \(a\): it has no numba"):
        reference_of([node("a")], {"a": "it has no numba"})
    with pytest.raises(EdgeInferError, match="it has no nodes with CPUs"):
        reference_of([], {})


def ray_of(here: str, *nodes: tuple[str, str, int]) -> Any:
    """What is asked of Ray, on the node `here`."""
    listed = [
        {"NodeID": name, "NodeManagerHostname": host, "Resources": {"CPU": float(cpus)}, "Alive": True}
        for name, host, cpus in nodes
    ]
    context = SimpleNamespace(get_node_id=lambda: here)
    return SimpleNamespace(nodes=lambda: listed, get_runtime_context=lambda: context)


def test_nodes_of_one_computer_share_no_core() -> None:
    nodes = ("a", "one", 1), ("b", "one", 1), ("c", "two", 8)
    assert own_cores(ray_of("a", *nodes), (0, 1)) == (0,)
    assert own_cores(ray_of("b", *nodes), (0, 1)) == (1,)
    assert own_cores(ray_of("c", *nodes), (0, 2, 4, 6)) is None  # all of its computer's cores
    assert own_cores(ray_of("a", ("a", "one", 2)), (0, 2, 4, 6)) == (0, 2)


def test_nodes_that_claim_more_cpus_than_there_are_cores_divide_the_cores() -> None:
    nodes = ("a", "one", 4), ("b", "one", 4)
    assert own_cores(ray_of("a", *nodes), (0, 1, 2, 3)) == (0, 1)
    assert own_cores(ray_of("b", *nodes), (0, 1, 2, 3)) == (2, 3)


def test_blocks_have_a_line_until_the_driver_would_not_keep_up() -> None:
    assert lines_per_block(10, 16) == 1
    assert lines_per_block(20_000, 16) == 1
    assert lines_per_block(1_000_000, 16) == 50
    assert lines_per_block(1_000_000, 8000) == 50
    assert lines_per_block(300_000, 8000) == 15
    assert lines_per_block(8000, 8000) == 1
