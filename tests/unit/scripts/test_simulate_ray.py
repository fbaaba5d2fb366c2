"""The simulated growth of a cluster has the limits that formulas give."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from scripts import simulate_ray
from scripts.simulate_ray import (
    ClusterCosts,
    address_s,
    cold_start,
    nodes_until,
    queue_wait_s,
    simulated_batch,
    simulated_server,
)

COSTS = ClusterCosts()


def test_a_node_alone_answers_what_it_can_and_the_head_limits_many() -> None:
    alone = simulated_batch(COSTS, 1, 1000)
    assert alone.lines_s == pytest.approx(COSTS.parallel / COSTS.line_s, rel=0.03)
    many = simulated_batch(replace(COSTS, head_s=0.05), 64, 12)
    assert many.lines_s == pytest.approx(1 / 0.05, rel=0.02)
    assert many.head_share == pytest.approx(1, rel=0.02)
    assert simulated_batch(replace(COSTS, head_s=0.05, lines_per_block=8), 64, 6).efficiency > 0.95
    assert nodes_until(replace(COSTS, head_s=0.05))["head (batches)"] == pytest.approx(20)


@pytest.mark.parametrize("n_nodes", [150, 250])
def test_waiting_at_the_address_is_that_of_a_queue(n_nodes: int) -> None:
    server, service_s = simulated_server(COSTS, n_nodes, 40_000), address_s(COSTS, n_nodes)
    waiting = server.passing_s - service_s
    assert waiting == pytest.approx(queue_wait_s(server.requests_s, service_s), rel=0.1)


def test_the_address_is_saturated_where_its_work_for_a_request_takes_as_long_as_the_next_one() -> None:
    n_nodes = nodes_until(COSTS)["address (requests)"]
    assert simulated_server(COSTS, round(n_nodes), 1).address_share == pytest.approx(1, rel=0.01)
    same = replace(COSTS, router_replica_s=0.0, router_s=0.0)
    assert nodes_until(same)["address (requests)"] == pytest.approx(1 / (0.7 * same.proxy_s))


def test_more_requests_than_the_address_can_pass_never_end_waiting() -> None:
    assert math.isinf(simulated_server(COSTS, 1000).passing_s)
    assert math.isinf(queue_wait_s(2.0, 0.5))


def test_a_shared_disk_and_the_hub_are_divided_and_the_object_store_is_not() -> None:
    one, many = cold_start(COSTS, 1), cold_start(COSTS, 1000)
    assert one.own_disk_s == many.own_disk_s == COSTS.model_bytes / COSTS.disk_bytes_s
    assert many.shared_disk_s == pytest.approx(1000 * COSTS.model_bytes / COSTS.shared_disk_bytes_s)
    assert many.hub_s == pytest.approx(1000 * COSTS.model_bytes / COSTS.hub_bytes_s)
    assert many.store_s < 3 * one.store_s


def test_the_table_states_its_inputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "inputs.json").write_text(json.dumps({"head_s": 0.002, "machine": "small"}))
    given = ["--inputs", str(tmp_path / "inputs.json"), "--nodes", "1,4", "--blocks", "4", "--line-s", "2"]
    monkeypatch.setattr(sys, "argv", ["simulate_ray.py", *given])
    simulate_ray.main()
    shown = capsys.readouterr().out
    assert "head_s = 0.002 (measured: " in shown
    assert "line_s = 2 (given: " in shown
    assert "proxy_s = 0.003 (assumed: " in shown
    assert [line.split("|")[1].strip() for line in shown.splitlines() if line.startswith("| ")][1:] == ["1", "4"]
    assert "head (batches): saturated by 125 nodes" in shown
