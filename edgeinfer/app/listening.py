"""Listening on this computer: sockets, and the host names that requests may use.

In: hosts and ports. Out: a listening socket, or an error that says why not; whether a name is this computer's.
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
    """Whether a name is an IP address, which foreign DNS cannot redirect to this computer."""
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def may_be_called(name: str, host: str, further: Iterable[str] = ()) -> bool:
    """Whether requests to a server at `host` may use this host name, given without its port.

    The computer's local names, `host` and these `further` ones are allowed. If `host` is reachable from elsewhere, IP
    addresses and this computer's name are allowed too: foreign DNS can redirect neither to this computer.
    """
    if name.casefold().strip("[]") in {*LOCAL_NAMES, *(each.casefold() for each in (host, *further))}:
        return True
    return not is_loopback(host) and (is_address(name) or name.casefold() == socket.gethostname().casefold())


def is_own_page(origin: str, host: str) -> bool:
    """Whether a page's `Origin` matches the `Host` of its request."""
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
    """Open a listening socket. Raises BadSetting if that fails."""
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
    """The URL at which a socket is reached over HTTP."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
