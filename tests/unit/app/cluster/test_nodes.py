"""Which nodes compute the same, and how many lines they get at a time."""

from __future__ import annotations

import pytest

from edgeinfer.app.cluster.batches import lines_per_block
from edgeinfer.app.cluster.nodes import ClusterNode, NodeBits, reference_of
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


def test_blocks_have_a_line_until_the_driver_would_not_keep_up() -> None:
    assert lines_per_block(10, 16) == 1
    assert lines_per_block(20_000, 16) == 1
    assert lines_per_block(1_000_000, 16) == 50
    assert lines_per_block(1_000_000, 8000) == 50
    assert lines_per_block(300_000, 8000) == 15
    assert lines_per_block(8000, 8000) == 1
