"""Which nodes compute the same, and how many lines they get at a time."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from edgeinfer.app.cluster.batches import Fleet, lines_per_block
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


def test_a_node_that_joins_gets_the_next_actor_and_one_that_is_left_out_none() -> None:
    listed = [
        {"NodeID": name * 56, "NodeManagerHostname": "host", "Resources": {"CPU": 2.0 + number}, "Alive": True}
        for number, name in enumerate("abc")
    ]
    context = SimpleNamespace(get_node_id=lambda: "a" * 56)
    ray = SimpleNamespace(nodes=lambda: listed, get_runtime_context=lambda: context)
    fleet = Fleet(ray, [node("a" * 56), node("b" * 56)], frozenset({"c" * 56}))  # type: ignore[arg-type]
    pytest.importorskip("ray")
    assert fleet.least_cpus == 4
    given = [placed(fleet) for _ in range(3)]
    assert given == ["a", "b", "b"]  # all have one: it waits for a CPU that is never free
    listed += [{**listed[0], "NodeID": name * 56} for name in "de"]
    assert [placed(fleet) for _ in range(3)] == ["d", "e", "e"]


def placed(fleet: Fleet) -> str:
    return str(fleet()["scheduling_strategy"].node_id)[0]


def test_blocks_have_a_line_until_the_driver_would_not_keep_up() -> None:
    assert lines_per_block(10, 16) == 1
    assert lines_per_block(20_000, 16) == 1
    assert lines_per_block(1_000_000, 16) == 50
    assert lines_per_block(1_000_000, 8000) == 50
    assert lines_per_block(300_000, 8000) == 15
    assert lines_per_block(8000, 8000) == 1
