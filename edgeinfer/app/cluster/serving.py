"""`edgeinfer serve --ray`: replicas on a cluster, and the address before them, until told to end.

In: settings, the server's options. Out: an exit code. The address is this process's own socket, so a request takes one
step to its replica; Serve's HTTP proxies stay off. At the end answers have a few seconds, then streams are told that
the server ends; replicas and what was started of Ray go with the command.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeinfer.app.cluster.application import REPLICA_NAME, ReplicaCounts, replicas, require_servable
from edgeinfer.app.cluster.cluster_plan import laid_out, node_cpus
from edgeinfer.app.cluster.front import Front, guarded_front
from edgeinfer.app.cluster.ray_session import ray_session
from edgeinfer.app.cluster.replica import Serving
from edgeinfer.app.plain_text import counted
from edgeinfer.app.server.connections import http_server
from edgeinfer.app.server.listening import ServerOptions, listen_all, url_of
from edgeinfer.app.server.orderly_end import unwound_by_sigterm
from edgeinfer.app.server.running import LOOK_S, Sidecar, log_to_stderr, print_ready
from edgeinfer.app.server.served_models import served_models
from edgeinfer.engine.running import RunningNote
from edgeinfer.errors import BadSetting, EdgeInferError

if TYPE_CHECKING:
    import uvicorn

    from edgeinfer.settings import Settings

LOG = logging.getLogger("edgeinfer.server")
APP_NAME = "edgeinfer"
TELL_S = 2.0
"""Seconds after which streams that still run are told that the server ends."""
_ERROR = re.compile(r"edgeinfer\.errors\.\w+: (?P<message>.+)")
"""One of our errors in the trace of a replica that did not start."""


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """`address`: of Ray, as `--ray` takes it. `replicas`: how many, as `--replicas` takes it; None: by the plan."""

    address: str
    replicas: str | None = None
    presets_path: Path | None = None


def run_cluster(options: ServerOptions, sidecar: Sidecar, cluster: ClusterOptions, settings: Settings) -> int:
    """Serve until stopped and return the exit code. Raises BadSetting, ModelNotFound, EdgeInferError."""
    if sidecar.idle_timeout_s is not None:
        raise BadSetting("--idle-timeout is for a server of one process; leave it or --ray out")
    require_servable(options)
    log_to_stderr()
    names, _ = served_models(settings, options, cluster.presets_path)
    model = None if names.presets is not None else names.default
    listeners = listen_all(options.addresses, options.port)
    try:
        with unwound_by_sigterm(), ray_session(cluster.address):
            import ray

            n_cpus = node_cpus(ray.nodes())
            serving, counts = laid_out(settings, options, model, n_cpus, cluster.replicas, cluster.presets_path)
            with deployed(serving, counts) as handle, RunningNote(address=f"{url_of(listeners[0])}/v1"):
                app, front = guarded_front(handle, options)
                where = f" on Ray ({counted(len(n_cpus), 'node')}, {counted(counts.least, 'replica')})"
                print_ready(names.default.name, where, sidecar, listeners[0])
                asyncio.run(_serve(app, front, sidecar, listeners))
        return 0
    finally:
        for listener in listeners:
            listener.close()


@contextmanager
def deployed(serving: Serving, counts: ReplicaCounts, name: str = APP_NAME) -> Iterator[Any]:
    """Run the replicas for the block; gives their handle. Raises EdgeInferError with what a replica says."""
    from ray import serve

    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    serve.start(proxy_location="Disabled", logging_config={"log_level": "WARNING"})
    try:
        serve.run(replicas(serving, counts), name=name, route_prefix=None)
        yield serve.get_deployment_handle(REPLICA_NAME, name)
    except RuntimeError as reason:
        raise EdgeInferError(f"no replica starts: {_told(name) or reason}") from None
    finally:
        with suppress(Exception):
            serve.delete(name)


def _told(name: str) -> str | None:
    """Why replicas do not start, in our own words if they have some."""
    from ray import serve

    application = serve.status().applications.get(name)
    if application is None:
        return None
    text = "\n".join([application.message, *(each.message for each in application.deployments.values())])
    found = _ERROR.findall(text)
    return found[-1] if found else (text.strip().rpartition("\n")[2] or None)


async def _serve(app: Any, front: Front, sidecar: Sidecar, listeners: list[socket.socket]) -> None:
    server = http_server(app)
    watch = asyncio.create_task(_watch(server, front, sidecar))
    try:
        await server.serve(sockets=listeners)
    finally:
        watch.cancel()
        front.end()


async def _watch(server: uvicorn.Server, front: Front, sidecar: Sidecar) -> None:
    """End with the parent process, and tell streams before the server closes their connections."""
    ends_s: float | None = None
    while True:
        await asyncio.sleep(LOOK_S)
        if sidecar.parent is not None and sidecar.parent.has_ended:
            server.should_exit = True
        if server.should_exit:
            ends_s = ends_s or time.monotonic()
            if time.monotonic() - ends_s >= TELL_S - LOOK_S:
                front.end()
