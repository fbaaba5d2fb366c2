"""Core plans: as many cores as pay, for decoding and prefill; one worker pool over nodes or replicas."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeinfer.scheduling.cost.seconds import Pass
from edgeinfer.scheduling.machine.profile import CoreRates, Curve, DeviceRates, NodeRates, ProductRates
from edgeinfer.scheduling.workers.core_plan import WORTH, core_plan, node_plan, worker_pool_seconds
from tests.unit.scheduling.placement.models import decoder, layer
from tests.unit.scheduling.profiles import GB, device

WORK = decoder([layer(1024, 2048, 16, 4)] * 4, 1024)
DECODE, PREFILL = Pass(1, 100), Pass(256)


def cpu(*cores: CoreRates, read: float = 50 * GB, op_s: float = 1e-6, nodes: tuple[NodeRates, ...] = ()) -> DeviceRates:
    rates = ProductRates(0.6, Curve((1, 16), (200e9, 800e9)))
    plain = device("cpu", read=read, madds=1e12)
    nodes = nodes or (NodeRates(0, 1 << 37, read),)
    return replace(plain, products={"*": rates}, cores=cores, nodes=nodes, op_s=op_s)


def alike(n_cores: int, node: int = 0, first: int = 0, read: float = 25 * GB) -> tuple[CoreRates, ...]:
    return tuple(CoreRates(first + number, "performance", node, read, 1.0) for number in range(n_cores))


def test_decoding_takes_as_many_cores_as_memory_feeds_and_prefill_all():
    rates = cpu(*alike(8))
    assert len(core_plan(rates, WORK, DECODE).cores) < len(core_plan(rates, WORK, PREFILL).cores) == 8


def test_cores_beyond_the_bandwidth_that_gain_too_little_are_left_out():
    rates = replace(cpu(*alike(8)), products={"*": ProductRates(0.6, Curve.level(1e15))}, op_s=0.0)
    assert len(core_plan(rates, WORK, DECODE).cores) == 2  # 2 x 25 GB/s fill 50 GB/s


def test_shares_follow_what_cores_do_alone():
    fast, slow = alike(2), (CoreRates(2, "efficiency", 0, 25 * GB, 0.5), CoreRates(3, "efficiency", 0, 25 * GB, 0.5))
    rates = replace(cpu(*fast, *slow), read=Curve.level(1e15), op_s=0.0, nodes=())
    found = core_plan(rates, WORK, PREFILL)
    assert found.cores == (0, 1, 2, 3)
    assert found.shares == pytest.approx((1 / 3, 1 / 3, 1 / 6, 1 / 6), rel=0.02)


def test_dear_barriers_keep_a_worker_pool_small():
    few, many = (core_plan(cpu(*alike(16), op_s=op_s), WORK, DECODE) for op_s in (1e-3, 0.0))
    assert len(few.cores) < len(many.cores)


@given(st.lists(st.tuples(st.floats(0.1, 1), st.floats(1, 40), st.integers(0, 1)), min_size=1, max_size=6))
@settings(max_examples=40, deadline=None)
def test_a_plan_is_near_the_best_of_all_worker_pools(drawn):
    cores = tuple(CoreRates(n, "any", node, read * GB, speed) for n, (speed, read, node) in enumerate(drawn))
    rates = cpu(*cores, nodes=tuple(NodeRates(n, 1 << 37, 40 * GB, (40 * GB, 20 * GB)) for n in (0, 1)))
    for step in (DECODE, PREFILL):
        found = core_plan(rates, WORK, step)
        subsets = ([core for n, core in enumerate(cores) if bits >> n & 1] for bits in range(1, 1 << len(cores)))
        best = min(worker_pool_seconds(rates, WORK, step, worker_pool) for worker_pool in subsets)
        assert found.seconds <= best * (1 + WORTH) * 1.03
        assert sum(found.shares) == pytest.approx(1)


def two_nodes(remote: float, memory_bytes: int = 1 << 37) -> DeviceRates:
    nodes = (
        NodeRates(0, memory_bytes, 50 * GB, (50 * GB, remote)),
        NodeRates(1, memory_bytes, 50 * GB, (remote, 50 * GB)),
    )
    return cpu(*alike(4), *alike(4, 1, 4), read=100 * GB, op_s=5e-5, nodes=nodes)


def test_replicas_are_for_many_sequences_and_dear_barriers_between_nodes():
    many = Pass(1, 100, 1, 16)
    far = node_plan(two_nodes(2 * GB), WORK, many, WORK.weight_bytes)
    assert far.n_replicas == 2
    assert far.n_sequences == 8
    assert [
        set(worker_pool.cores) <= {4 * n, 4 * n + 1, 4 * n + 2, 4 * n + 3}
        for n, worker_pool in enumerate(far.worker_pools)
    ] == [True] * 2
    assert node_plan(two_nodes(2 * GB), WORK, DECODE, WORK.weight_bytes).n_replicas == 1
    assert node_plan(two_nodes(2 * GB, 1000), WORK, many, WORK.weight_bytes).n_replicas == 1
    together = core_plan(two_nodes(2 * GB), WORK, many)
    assert far.tok_s >= many.n_rows / together.seconds
