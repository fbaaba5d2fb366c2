"""Listening on this computer: sockets, and the names that requests may be addressed to.

In: hosts and ports. Out: a socket that listens, or an error that says why not; whether a name is this computer's.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Iterable
from urllib.parse import urlsplit

from edgeinfer.errors import BadSetting

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")


def is_loopback(host: str) -> bool:
    """Whether a host is this computer only."""
    if host.casefold() == "localhost":
        return True
    return is_address(host) and ipaddress.ip_address(host.strip("[]")).is_loopback


def is_address(name: str) -> bool:
    """Whether this is an address itself: no stranger's DNS can have made it this computer's."""
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def may_be_called(name: str, host: str, further: Iterable[str] = ()) -> bool:
    """Whether requests to what listens at `host` may be addressed to this name, given without its port.

    Its own names and these `further` ones are known. Where others reach it addresses and this computer's name are too:
    a stranger can have neither point here.
    """
    if name.casefold().strip("[]") in {*LOCAL_NAMES, *(each.casefold() for each in (host, *further))}:
        return True
    return not is_loopback(host) and (is_address(name) or name.casefold() == socket.gethostname().casefold())


def is_own_page(origin: str, host: str) -> bool:
    """Whether a page, by its `Origin`, comes from the very place that its request is addressed to, by its `Host`."""
    try:
        return urlsplit(origin).netloc == host
    except ValueError:
        return False


def name_of(host: str) -> str:
    """A host, as requests name it, without its port."""
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.rpartition(":")[0] if host.count(":") == 1 else host


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens. Raises BadSetting where it cannot."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError, OverflowError) as reason:
        raise BadSetting(f"{host}:{port} is no address to listen at: {reason}") from None
    try:
        if os.name == "posix":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)
        listener.setblocking(False)
    except OSError as reason:
        listener.close()
        raise BadSetting(
            f"{host}:{port} cannot be listened at: {reason.strerror or reason}; --port 0 takes any that is free"
        ) from None
    return listener


def url_of(listener: socket.socket) -> str:
    """Where a socket is reached over HTTP."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
