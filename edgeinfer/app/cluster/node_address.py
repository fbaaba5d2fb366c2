"""Where Serve's own servers for other processes listen: at the address that their cluster uses, and nowhere else.

In: nothing. Out: a change to Serve in this process, for deployments to make while they are set up. By itself Serve
listens at all addresses of the computer, and whoever reaches that port can run programs here.
"""

from __future__ import annotations

import logging
from typing import Any

LOG = logging.getLogger("edgeinfer.server")
EVERYWHERE = "[::]"


def keep_to_node_address() -> None:
    """Have the replica in this process listen at its node's address alone."""
    import ray.util
    from ray.serve._private import replica

    add_port = getattr(replica, "add_port_to_grpc_server", None)
    if add_port is None:
        LOG.warning("this version of Ray Serve listens at all addresses of the computer; a firewall can prevent that")
        return
    address: str = ray.util.get_node_ip_address()
    host = f"[{address}]" if ":" in address else address

    def added(server: Any, place: str) -> Any:
        return add_port(server, place.replace(EVERYWHERE, host))

    replica.add_port_to_grpc_server = added
