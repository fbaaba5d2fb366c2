"""Serve's own door to the replicas: the front, as a deployment behind Serve's HTTP proxies.

In: a handle of the replicas, the server's options. Out: an ASGI application, which Serve runs.
"""

from __future__ import annotations

from typing import Any

from starlette.types import ASGIApp

from edgeinfer.app.cluster.front import guarded_front
from edgeinfer.app.cluster.node_address import keep_to_node_address
from edgeinfer.app.server.listening import ServerOptions


class Door:
    """The deployment's class, for `serve.ingress()`."""

    def __init__(self, handle: Any, options: ServerOptions) -> None:
        keep_to_node_address()
        self._app, _ = guarded_front(handle, options)

    def __serve_build_asgi_app__(self) -> ASGIApp:
        return self._app
