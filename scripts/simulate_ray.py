"""Growth of a Ray cluster on a virtual clock: what 1 to 1,000 nodes answer, and what saturates first.

Run: `python scripts/simulate_ray.py`, with inputs that were measured as options (`--help` names their defaults and
where these are from), or `--inputs FILE`, the JSON that `scripts/measure_ray.py parts http` prints. Prints a table: of
a batch, lines per second, efficiency and the head's load; of a server with one address, requests per second, the load
of the address and what it adds to the first token; and of a cold start, the seconds until all nodes have the model.

The batch is simulated block by block: the head (the driver, with Ray Data's executor) takes a result and sends the next
block, one at a time; a node answers `parallel` blocks at a time and has as many again in its queue. Requests arrive at
random (Poisson) at `load` of what the nodes can answer, and pass one address, which chooses among all replicas. A
broadcast over the object store is a pipeline of pieces through a tree; a shared disk and the hub's line are divided
among the nodes.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from edgeinfer.scheduling.virtual_clock import Clock, ClockTask

NODES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000)
HEAD, ADDRESS = "head", "address"
N_REQUESTS = 20_000
SEED = 1


@dataclass(frozen=True, slots=True)
class ClusterCosts:
    """Seconds, bytes and bytes per second of the pieces; defaults with their sources in SOURCES."""

    head_s: float = 0.004
    line_s: float = 8.0
    parallel: int = 8
    lines_per_block: int = 1
    proxy_s: float = 0.003
    router_s: float = 0.00002
    router_replica_s: float = 0.000004
    request_s: float = 8.0
    load: float = 0.7
    model_bytes: float = 5e9
    disk_bytes_s: float = 1e9
    shared_disk_bytes_s: float = 2e9
    network_bytes_s: float = 1.25e9
    hub_bytes_s: float = 1.25e8
    piece_bytes: float = 16e6


SOURCES = {
    "head_s": "the driver's CPU time for a block of a line: `measure_ray.py parts`",
    "line_s": "seconds that an answer takes while `parallel` others do: a model of 8B on 16 cores, 100 tokens",
    "parallel": "answers at a time on a node: --parallel of `edgeinfer batch`",
    "lines_per_block": "as `batch --ray` chooses: 1 up to 20,000 lines",
    "proxy_s": "CPU time of a proxy for a request: `measure_ray.py parts`",
    "router_s": "CPU time of choosing a replica by prefix, whatever their number: `measure_ray.py parts`",
    "router_replica_s": "the same for each replica there is",
    "request_s": "seconds that a request takes on a node while `parallel` others do",
    "load": "share of what the nodes can answer that arrives",
    "model_bytes": "8B in 4 bits",
    "disk_bytes_s": "a node's own disk",
    "shared_disk_bytes_s": "a file server that all nodes read",
    "network_bytes_s": "10 Gbit/s of each node",
    "hub_bytes_s": "1 Gbit/s of all nodes together to the hub",
    "piece_bytes": "of a file sent over the object store",
}


@dataclass(frozen=True, slots=True)
class BatchGrowth:
    """Lines per second of a batch, in relation to a node alone, and the share of the time in which the head works."""

    lines_s: float
    efficiency: float
    head_share: float


@dataclass(frozen=True, slots=True)
class ServerGrowth:
    """Requests per second, the share of the time in which the address works (above 1: it cannot keep up).

    `router_share`: the share in which it chooses replicas; `passing_s`: mean seconds that a request takes there.
    """

    requests_s: float
    address_share: float
    router_share: float
    passing_s: float


@dataclass(frozen=True, slots=True)
class ColdStart:
    """Seconds until all nodes have the model: from their own disks, a shared one, the hub, the object store."""

    own_disk_s: float
    shared_disk_s: float
    hub_s: float
    store_s: float


def simulated_batch(costs: ClusterCosts, n_nodes: int, blocks_per_slot: int, seed: int = SEED) -> BatchGrowth:
    """A batch of `blocks_per_slot` blocks for each place of each node, whose answers differ in length.

    The rate is that of the middle half of its blocks: without those that start together, and the end.
    """
    draw, clock = random.Random(seed), Clock()
    n_slots = n_nodes * costs.parallel
    left = n_slots * blocks_per_slot
    running: list[tuple[float, int, int]] = []

    def give(slot: int, after: tuple[int, ...]) -> None:
        nonlocal left
        if left == 0:
            return
        left -= 1
        sent = clock.submit(ClockTask("send", HEAD, costs.head_s, after))
        seconds = sum(costs.line_s * draw.gammavariate(4, 0.25) for _ in range(costs.lines_per_block))
        block = clock.submit(ClockTask("answer", f"slot {slot}", seconds, (sent,)))
        heapq.heappush(running, (clock.span(block).end, slot, block))

    for _ in range(2):  # one runs, one waits
        for slot in range(n_slots):
            give(slot, ())
    ends: list[float] = []
    while running:
        end, slot, block = heapq.heappop(running)
        ends.append(end)
        give(slot, (block,))
    first, last = ends[len(ends) // 4], ends[3 * len(ends) // 4]
    n_lines = (3 * len(ends) // 4 - len(ends) // 4) * costs.lines_per_block
    rate = n_lines / (last - first)
    return BatchGrowth(
        rate, rate * costs.line_s / (costs.parallel * n_nodes), rate / costs.lines_per_block * costs.head_s
    )


def simulated_server(costs: ClusterCosts, n_nodes: int, n_requests: int = N_REQUESTS, seed: int = SEED) -> ServerGrowth:
    """Requests that arrive at random and pass one address. Where it cannot keep up, waiting has no end."""
    rate, service_s = costs.load * n_nodes * costs.parallel / costs.request_s, address_s(costs, n_nodes)
    loads = rate * service_s, rate * (service_s - costs.proxy_s)
    if loads[0] >= 1:
        return ServerGrowth(rate, *loads, math.inf)
    draw, clock, now, passing = random.Random(seed), Clock(), 0.0, 0.0
    for _ in range(n_requests):
        now += draw.expovariate(rate)
        clock.now = now
        passing += clock.span(clock.submit(ClockTask("request", ADDRESS, service_s))).end - now
    return ServerGrowth(rate, *loads, passing / n_requests)


def address_s(costs: ClusterCosts, n_nodes: int) -> float:
    """Seconds that the address works for a request: passing it on, and choosing one of the replicas."""
    return costs.proxy_s + costs.router_s + costs.router_replica_s * n_nodes


def queue_wait_s(rate: float, service_s: float) -> float:
    """Mean waiting of an M/D/1 queue (Pollaczek and Khinchine)."""
    load = rate * service_s
    return load * service_s / (2 * (1 - load)) if load < 1 else math.inf


def cold_start(costs: ClusterCosts, n_nodes: int) -> ColdStart:
    """When the last node has the model. A piece passes ceil(log2(nodes + 1)) links; the pieces follow each other."""
    nbytes, n_pieces = costs.model_bytes, math.ceil(costs.model_bytes / costs.piece_bytes)
    own = nbytes / costs.disk_bytes_s
    shared = max(own, nbytes * n_nodes / costs.shared_disk_bytes_s)
    hub = max(nbytes / costs.network_bytes_s, nbytes * n_nodes / costs.hub_bytes_s)
    links = math.ceil(math.log2(n_nodes + 1))
    store = (n_pieces + links - 1) * costs.piece_bytes / costs.network_bytes_s * min(2, links)
    return ColdStart(own, shared, hub, max(own, store))


def nodes_until(costs: ClusterCosts) -> dict[str, float]:
    """How many nodes saturate each part that all of them share."""
    blocks_s = costs.parallel / (costs.line_s * costs.lines_per_block)
    requests_s = costs.load * costs.parallel / costs.request_s
    fixed, each = requests_s * (costs.proxy_s + costs.router_s), requests_s * costs.router_replica_s
    address = 1 / fixed if not each else (math.sqrt(fixed * fixed + 4 * each) - fixed) / (2 * each)
    return {"head (batches)": 1 / (blocks_s * costs.head_s), "address (requests)": address}


def table(costs: ClusterCosts, counts: Sequence[int], blocks_per_slot: int) -> str:
    """A line for each number of nodes."""
    rows = [
        "| nodes | batch lines/s | efficiency | head busy | requests/s | address busy | for choosing "
        "| first token later by | own disk | shared disk | hub | object store |",
        "|" + "---|" * 12,
    ]
    for n_nodes in counts:
        batch, server, start = (
            simulated_batch(costs, n_nodes, blocks_per_slot),
            simulated_server(costs, n_nodes),
            cold_start(costs, n_nodes),
        )
        later = "no end" if math.isinf(server.passing_s) else f"{1e3 * server.passing_s:.2f} ms"
        rows.append(
            f"| {n_nodes:,} | {batch.lines_s:,.1f} | {batch.efficiency:.1%} | {batch.head_share:.1%} | "
            f"{server.requests_s:,.1f} | {server.address_share:.1%} | {server.router_share:.1%} | {later} "
            f"| {start.own_disk_s:,.0f} s | {start.shared_disk_s:,.0f} s | {start.hub_s:,.0f} s "
            f"| {start.store_s:,.0f} s |"
        )
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usual = ClusterCosts()
    for field in fields(ClusterCosts):
        value = getattr(usual, field.name)
        flag = f"--{field.name.replace('_', '-')}"
        parser.add_argument(flag, type=type(value), help=f"{SOURCES[field.name]}; {value:g}")
    parser.add_argument("--inputs", type=Path, help="a JSON file with inputs by name, as measured")
    parser.add_argument("--nodes", default=",".join(map(str, NODES)), help="numbers of nodes")
    parser.add_argument("--blocks", type=int, default=12, help="blocks for each answer at a time of each node")
    given = parser.parse_args()
    names = {field.name for field in fields(ClusterCosts)}
    measured = {} if given.inputs is None else json.loads(given.inputs.read_text(encoding="utf-8"))
    costs = replace(usual, **{name: value for name, value in measured.items() if name in names})
    costs = replace(costs, **{name: getattr(given, name) for name in names if getattr(given, name) is not None})
    for name in SOURCES:
        origin = "given" if getattr(given, name) is not None else "measured" if name in measured else "assumed"
        print(f"{name} = {getattr(costs, name):g} ({origin}: {SOURCES[name]})")
    print()
    print(table(costs, [int(n) for n in given.nodes.split(",")], given.blocks))
    print()
    for part, n_nodes in sorted(nodes_until(costs).items(), key=lambda each: each[1]):
        print(f"{part}: saturated by {n_nodes:,.0f} nodes")


if __name__ == "__main__":
    main()
