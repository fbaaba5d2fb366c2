"""The nodes of a cluster: which there are, and what each computes.

In: Ray's list of nodes, a report that each makes of itself. Out: what computes the same bits, and how others differ.
Bits of language models are the same on all instruction sets; this finds nodes for which that does not hold: other
versions, other devices, faults. Knows no batches.
"""

from __future__ import annotations

import os
import platform
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from edgeinfer.errors import EdgeInferError
from edgeinfer.setting_values import KVKind

if TYPE_CHECKING:
    from types import ModuleType

SURVEY_S = 900.0
"""Longest time for the reports of all nodes: one without kernels compiles them first."""
JOINING_S = (0.5, 1.0, 2.0, 4.0)
"""Waits for a node that is known, and to which Ray gives no task yet."""


@dataclass(frozen=True, slots=True)
class NodeBits:
    """What a node computes with. Nodes with the same `version`, `device` and `digest` give the same answers."""

    version: str
    device: str
    digest: str
    instruction_set: str
    machine: str
    numba: str

    @property
    def decisive(self) -> tuple[str, str, str]:
        """What must be the same."""
        return self.version, self.device, self.digest

    @property
    def told(self) -> str:
        """In a few words."""
        return (
            f"edgeinfer {self.version} on {self.device} ({self.machine} {self.instruction_set}), logits {self.digest}"
        )


@dataclass(frozen=True, slots=True)
class ComputedModel:
    """What nodes are compared by: the device, the format of the model's matrices, the kind of the KV cache."""

    device: str
    form: str
    kv: KVKind


def bits_here(compared: ComputedModel) -> NodeBits:
    """What this computer computes. Raises as `logits_digest`."""
    import edgeinfer
    from edgeinfer.engine.probing.bits import logits_digest
    from edgeinfer.jit import targets
    from edgeinfer.jit.cpu import cpu_features

    digest = logits_digest(compared.device, compared.form, compared.kv)
    isa = targets.choose(cpu_features(), os.environ.get("EDGEINFER_SIMD")) if compared.device == "cpu" else ""
    return NodeBits(edgeinfer.__version__, compared.device, digest, isa, platform.machine(), version("numba"))


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """A node that answers: its id in Ray, its computer, and its CPUs."""

    id: str
    host: str
    n_cpus: int
    is_driver: bool = False

    @property
    def told(self) -> str:
        """Its name for people."""
        return f"{self.host} ({self.id[:8]})"


def nodes_of(ray: ModuleType) -> list[ClusterNode]:
    """The living nodes that have CPUs, by computer and id."""
    own = ray.get_runtime_context().get_node_id()
    found = [
        ClusterNode(
            node["NodeID"], node["NodeManagerHostname"], int(node["Resources"].get("CPU", 0)), node["NodeID"] == own
        )
        for node in ray.nodes()
        if node["Alive"]
    ]
    return sorted((node for node in found if node.n_cpus), key=lambda node: (node.host, node.id))


def on_node(node_id: str) -> Any:
    """Ray's way to place a task or actor on a node, and nowhere else."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node_id=node_id, soft=False)


def survey(ray: ModuleType, nodes: Sequence[ClusterNode], compared: ComputedModel) -> dict[str, NodeBits | str]:
    """What each node computes, by id, or why it cannot tell. One that has just joined is asked again if need be."""
    task = ray.remote(num_cpus=0, max_retries=0)(bits_here)
    found, left = dict[str, NodeBits | str](), [node.id for node in nodes]
    for wait_s in (*JOINING_S, None):
        asked = {task.options(scheduling_strategy=on_node(id_)).remote(compared): id_ for id_ in left}
        done, late = ray.wait(list(asked), num_returns=len(asked), timeout=SURVEY_S) if asked else ([], [])
        found |= {asked[each]: f"no report within {SURVEY_S:.0f} s" for each in late}
        left = []
        for each in done:
            try:
                found[asked[each]] = ray.get(each)
            except ray.exceptions.TaskUnschedulableError as reason:  # Ray's head knows the node, not all others do yet
                found[asked[each]] = _said(reason)
                left.append(asked[each])
            except Exception as reason:
                found[asked[each]] = _said(reason)
        if not left or wait_s is None:
            break
        time.sleep(wait_s)
    return found


def _said(reason: Exception) -> str:
    """The error of a task, without Ray's frames."""
    cause = getattr(reason, "cause", None) or reason
    if isinstance(cause, ModuleNotFoundError):
        return f"it has no {cause.name}; install edgeinfer there, the same version"
    return (str(cause).strip() or type(cause).__name__).splitlines()[-1]


def reference_of(nodes: Sequence[ClusterNode], found: Mapping[str, NodeBits | str]) -> NodeBits:
    """What answers are expected to be computed with: as this computer does, else as most nodes do.

    Raises EdgeInferError if no node can compute.
    """
    able = [(node, bits) for node in nodes if isinstance(bits := found.get(node.id), NodeBits)]
    if not able:
        reasons = "; ".join(f"{node.told}: {found.get(node.id)}" for node in nodes) or "it has no nodes with CPUs"
        raise EdgeInferError(f"no node of the cluster can answer: {reasons}")
    counts = Counter(bits.decisive for _, bits in able)
    return max(able, key=lambda each: (each[0].is_driver, counts[each[1].decisive]))[1]
