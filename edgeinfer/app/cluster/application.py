"""The Serve application: replicas of the server, how many and on what, and Serve's own door to them.

In: `Serving`, how many replicas. Out: an application for `serve.run`. Starts nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from edgeinfer.app.cluster.door import Door
from edgeinfer.app.cluster.replica import Replica, Serving
from edgeinfer.app.server.listening import ServerOptions
from edgeinfer.errors import BadSetting

REPLICA_NAME = "Replica"
DOOR_NAME = "Door"
MOST_AUTOMATIC = 64
"""Replicas that a growing queue makes without `--replicas`, where there are computers for them."""
ROOM = 64
"""Requests that a replica takes beyond those that its queue holds: it refuses them in its own words, or they ask of
models and health, which never wait."""
DRAIN_S = 600.0
"""Seconds that a replica that is no longer needed has for the answers under way."""
UPSCALE_S, DOWNSCALE_S = 5.0, 300.0
STATS_S = 2.0
"""Seconds between two reports of what models are open."""
DOOR_REQUESTS = 10_000
"""Requests at a time that Serve's door takes; replicas limit answers."""
LOGGING = MappingProxyType({"enable_access_log": False, "log_level": "WARNING"})
_RANGE = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")


@dataclass(frozen=True, slots=True)
class ReplicaCounts:
    """How many replicas there are at least and at most, and on each computer. `n_doors`: processes that take HTTP."""

    least: int
    most: int
    per_node: int = 1
    n_doors: int = 1


def require_servable(options: ServerOptions) -> None:
    """Raises BadSetting for what replicas on several computers cannot do, and as `ServerOptions.check`."""
    options.check()
    if options.tools:
        raise BadSetting("--mcp starts programs of one computer; leave it or --ray out")


def replica_range(text: str) -> tuple[int, int]:
    """Read `--replicas`: N, or MIN-MAX. Raises BadSetting."""
    match = _RANGE.fullmatch(text.strip())
    least = int(match[1]) if match else 0
    most = int(match[2] or least) if match else 0
    if not 1 <= least <= most:
        raise BadSetting(f"--replicas needs a number such as 4, or a range such as 1-8, not {text!r}")
    return least, most


def replicas(serving: Serving, counts: ReplicaCounts) -> Any:
    """The application of replicas alone, whose handle is a front's."""
    from ray import serve
    from ray.serve.config import AutoscalingConfig, RequestRouterConfig

    options, scaling = serving.options, dict[str, Any]()
    if counts.least == counts.most:
        scaling["num_replicas"] = counts.least
    else:
        scaling["autoscaling_config"] = AutoscalingConfig(
            min_replicas=counts.least,
            initial_replicas=counts.least,
            max_replicas=counts.most,
            target_ongoing_requests=options.parallel,
            upscale_delay_s=UPSCALE_S,
            downscale_delay_s=DOWNSCALE_S,
        )
    deployment = serve.deployment(
        name=REPLICA_NAME,
        max_ongoing_requests=options.parallel + options.queue + ROOM,
        max_replicas_per_node=counts.per_node,
        ray_actor_options={"num_cpus": serving.n_cpus},
        graceful_shutdown_timeout_s=DRAIN_S,
        logging_config=dict(LOGGING),
        graceful_shutdown_wait_loop_s=1.0,
        request_router_config=RequestRouterConfig(
            request_router_class="edgeinfer.app.cluster.routing.PrefixRouter",
            request_router_kwargs={"parallel": options.parallel},
            request_routing_stats_period_s=STATS_S,
        ),
        **scaling,
    )(Replica)
    return deployment.bind(serving)


def behind_door(serving: Serving, counts: ReplicaCounts) -> Any:
    """The application with Serve's own HTTP before it."""
    from ray import serve

    deployment = serve.deployment(
        name=DOOR_NAME,
        num_replicas=counts.n_doors,
        max_ongoing_requests=DOOR_REQUESTS,
        ray_actor_options={"num_cpus": 0},
        graceful_shutdown_timeout_s=DRAIN_S,
        logging_config=dict(LOGGING),
    )(serve.ingress()(Door))
    return deployment.bind(replicas(serving, counts), serving.options)
