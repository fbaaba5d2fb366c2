"""Which cores of a CPU take part and the share of each, for one kind of pass, so that prefill and decode differ.

In: the CPU's rates with its cores and nodes, the work of a model, a pass. Out: a `CorePlan`; for several NUMA nodes one
worker pool over all of them, or one replica of the model on each. Arithmetic scales with every core, reading only until
a node's memory is saturated, and barriers cost more in a larger worker pool: a core that saves less than `WORTH` of the
time is left out. Shares follow what each core does alone. Weights are assumed to be on the node of the core that reads
them. Pins nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from edgeinfer.scheduling.cost.memory import PROGRAM_BYTES
from edgeinfer.scheduling.cost.seconds import KV_ELEMENT_BYTES, DeviceCost, Pass
from edgeinfer.scheduling.cost.work import ModelWork
from edgeinfer.scheduling.machine.profile import CoreRates, DeviceRates, NodeRates

WORTH = 0.02
"""Share of the time that more cores must save."""
BARRIER_SHARE = 0.5
"""Share of `op_s` with all cores that grows with the number of workers; the rest (the call) does not."""


@dataclass(frozen=True, slots=True)
class CorePlan:
    """Cores of a worker pool, the share of rows of each, and seconds of the pass."""

    cores: tuple[int, ...]
    shares: tuple[float, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class NodePlan:
    """Worker pools side by side, each with a replica of the model and `n_sequences`; total tokens per second."""

    worker_pools: tuple[CorePlan, ...]
    n_sequences: int
    tok_s: float

    @property
    def n_replicas(self) -> int:
        return len(self.worker_pools)


@dataclass(frozen=True, slots=True)
class IdleDrafting:
    """A draft model on cores that decoding leaves out: seconds of a token there, and on the cores that it uses."""

    cores: tuple[int, ...]
    idle_s: float
    used_s: float

    @property
    def is_faster(self) -> bool:
        """Whether drafting takes less time there."""
        return self.idle_s < self.used_s


def idle_drafting(
    cpu: DeviceRates, used: Collection[int], idle: Collection[int], drafter: ModelWork, step: Pass
) -> IdleDrafting | None:
    """What cores that decoding leaves idle could do for a draft model; None if there are none of them."""
    if not idle or not used:
        return None
    there, here = (core_plan(cpu, drafter, step, among=cores) for cores in (idle, used))
    return IdleDrafting(there.cores, there.seconds, here.seconds)


def core_plan(
    cpu: DeviceRates, work: ModelWork, step: Pass, kv: str = "f16", among: Collection[int] | None = None
) -> CorePlan:
    """The smallest worker pool that is within `WORTH` of the fastest, out of some of the cores (None: all)."""
    cores = [core for core in cpu.cores if among is None or core.number in among]
    if not cores:
        raise ValueError(f"{cpu.name} has no cores listed" + ("" if among is None else f" among {sorted(among)}"))
    worker_pools = {_key(order[:size]): order[:size] for order in _orders(cores) for size in range(1, len(cores) + 1)}
    timed = [
        (worker_pool_seconds(cpu, work, step, worker_pool, kv), worker_pool) for worker_pool in worker_pools.values()
    ]
    fastest = min(seconds for seconds, _ in timed)
    near = [each for each in timed if each[0] <= fastest * (1 + WORTH)]
    seconds, worker_pool = min(near, key=lambda each: (len(each[1]), each[0], _key(each[1])))
    alone = [1 / worker_pool_seconds(cpu, work, step, [core], kv) for core in worker_pool]
    return CorePlan(tuple(core.number for core in worker_pool), tuple(speed / sum(alone) for speed in alone), seconds)


def node_plan(cpu: DeviceRates, work: ModelWork, step: Pass, memory_need_bytes: float, kv: str = "f16") -> NodePlan:
    """One worker pool over all nodes, or a replica on each with enough memory: whichever makes more tokens per second.

    `memory_need_bytes`: of a replica with its KV caches. `step.n_sequences` are divided among the replicas.
    """
    together = core_plan(cpu, work, step, kv)
    best = NodePlan((together,), step.n_sequences, step.n_rows / together.seconds)
    numbers = sorted({core.node for core in cpu.cores})
    roomy = all(node.memory_bytes >= memory_need_bytes for node in cpu.nodes if node.number in numbers)
    if len(numbers) < 2 or len(cpu.nodes) < len(numbers) or step.n_sequences < len(numbers) or not roomy:
        return best
    each = -(-step.n_sequences // len(numbers))
    part = replace(step, n_sequences=each)
    by_node = [[core.number for core in cpu.cores if core.node == number] for number in numbers]
    worker_pools = tuple(core_plan(cpu, work, part, kv, cores) for cores in by_node)
    tok_s = step.n_rows / max(worker_pool.seconds for worker_pool in worker_pools)
    return NodePlan(worker_pools, each, tok_s) if tok_s > best.tok_s else best


def replica_plan(cpu: DeviceRates, work: ModelWork, step: Pass, n_context: int, kv: str = "f16") -> NodePlan | None:
    """`node_plan` for sequences of this context; None if there is one node, or its cores are unknown."""
    if len(cpu.nodes) < 2 or not cpu.cores:
        return None
    each = -(-step.n_sequences // len(cpu.nodes))
    caches = work.kv_bytes_per_token(KV_ELEMENT_BYTES[kv]) * n_context * each
    return node_plan(cpu, work, step, work.weight_bytes + caches + PROGRAM_BYTES, kv)


def worker_pool_seconds(
    cpu: DeviceRates, work: ModelWork, step: Pass, worker_pool: Sequence[CoreRates], kv: str = "f16"
) -> float:
    """Seconds of a pass with some of the cores."""
    speed = sum(core.speed for core in worker_pool) / sum(core.speed for core in cpu.cores)
    read = read_bytes_s(cpu, worker_pool) / read_bytes_s(cpu, cpu.cores)
    rates = replace(cpu, op_s=cpu.op_s * op_factor(cpu, worker_pool))
    return DeviceCost(rates, _footprint(work, step, kv), speed, read).model(work, step, kv).total


def _footprint(work: ModelWork, step: Pass, kv: str) -> float:
    heads = [stage.shape.attention for stage in work.stages if stage.shape.attention is not None]
    per_position = KV_ELEMENT_BYTES[kv]
    cached = sum(each.reach(step.n_tokens, step.n_cached) * each.kv_bytes_per_token(per_position) for each in heads)
    return work.weight_bytes + cached * step.n_sequences


def read_bytes_s(cpu: DeviceRates, worker_pool: Sequence[CoreRates]) -> float:
    """Read rate of a worker pool: per node the sum of what its cores read alone, up to the rate of its memory."""
    limits = {node.number: node.read_bytes_s for node in cpu.nodes}
    total = 0.0
    for number in {core.node for core in worker_pool}:
        alone = sum(core.read_bytes_s for core in worker_pool if core.node == number)
        total += min(alone, limits.get(number, max(cpu.read.values)))
    return total


def op_factor(cpu: DeviceRates, worker_pool: Sequence[CoreRates]) -> float:
    """Overhead of an op, as a multiple of the overhead with all cores."""
    waiting = _barrier(cpu, worker_pool) / max(_barrier(cpu, cpu.cores), 1.0)
    return 1 - BARRIER_SHARE + BARRIER_SHARE * min(1.0, waiting)


def _barrier(cpu: DeviceRates, worker_pool: Sequence[CoreRates]) -> float:
    """Relative cost of a barrier: grows with the number of workers and with how much slower remote memory is."""
    numbers = {core.node for core in worker_pool}
    nodes = [node for node in cpu.nodes if node.number in numbers]
    return len(worker_pool) * (
        max((_remoteness(node, numbers) for node in nodes), default=1.0) if len(numbers) > 1 else 1.0
    )


def _remoteness(node: NodeRates, numbers: set[int]) -> float:
    others = [rate for number, rate in enumerate(node.remote_bytes_s) if number in numbers and number != node.number]
    return max(1.0, node.read_bytes_s / min(others)) if others else 1.0


def _orders(cores: Sequence[CoreRates]) -> list[list[CoreRates]]:
    """Orders in which to add cores: the fastest first, one node after another, and nodes in turns."""
    fast = sorted(cores, key=lambda core: (-core.speed, -core.read_bytes_s, core.number))
    readers = sorted(cores, key=lambda core: (-core.read_bytes_s, -core.speed, core.number))
    by_node = sorted(fast, key=lambda core: core.node)
    places: dict[int, int] = {}
    turns = []
    for core in fast:
        places[core.node] = places.get(core.node, 0) + 1
        turns.append((places[core.node], core.node, core))
    return [fast, readers, by_node, [core for _, _, core in sorted(turns, key=lambda each: each[:2])]]


def _key(worker_pool: Sequence[CoreRates]) -> tuple[int, ...]:
    return tuple(sorted(core.number for core in worker_pool))
