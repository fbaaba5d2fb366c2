"""How replicas are laid out on a cluster: one on each computer or NUMA node, with a share of its CPUs.

In: settings, the chosen model, the CPUs of the cluster's computers. Out: `Serving` and `ReplicaCounts`. Whether a
replica on each NUMA node is faster is planned on this computer, from its own profile, as for batches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeinfer.app.cluster.application import MOST_AUTOMATIC, ReplicaCounts, replica_range
from edgeinfer.app.cluster.replica import Serving
from edgeinfer.app.opening.batch_loading import BatchSettings, worker_pools
from edgeinfer.errors import BadSetting

if TYPE_CHECKING:
    from edgeinfer.app.server.listening import ServerOptions
    from edgeinfer.models.store import LocalModel
    from edgeinfer.settings import Settings


def laid_out(
    settings: Settings,
    options: ServerOptions,
    model: LocalModel | None,
    cpus: Sequence[float],
    wanted: str | None = None,
    presets_path: Path | None = None,
) -> tuple[Serving, ReplicaCounts]:
    """What to serve, and by how many replicas. `cpus`: of each computer; `wanted`: as `--replicas` says.

    Raises BadSetting.
    """
    if not cpus:
        raise BadSetting("no computer of the cluster offers CPUs to Ray; start it with --num-cpus")
    per_node = 1
    if model is not None:
        per_node = max(1, len(worker_pools(settings, model.path, BatchSettings(options.parallel, None, None))))
    least = len(cpus) * per_node
    most = max(least, MOST_AUTOMATIC)
    if wanted is not None:
        least, most = replica_range(wanted)
        per_node = max(per_node, math.ceil(least / len(cpus)))  # or Ray would have room for fewer, and wait for ever
        if per_node > min(cpus):
            raise BadSetting(
                f"--replicas {wanted}: {per_node} on each computer need as many CPUs, and Ray has {min(cpus):.0f} there"
            )
    n_cpus = max(1.0, min(cpus) // per_node)
    if settings.load.threads is not None:
        n_cpus = float(min(n_cpus, settings.load.threads))
    counts = ReplicaCounts(least, most, per_node, n_doors=len(cpus))
    return Serving(settings, options, model, n_cpus, presets_path), counts


def node_cpus(nodes: Sequence[dict[str, Any]]) -> list[float]:
    """The CPUs of each living computer that has any, from `ray.nodes()`."""
    found = [float(node["Resources"].get("CPU", 0.0)) for node in nodes if node["Alive"]]
    return [n_cpus for n_cpus in found if n_cpus > 0]
