"""Where a server of this computer listens and who may use it: its options, sockets, and host names.

In: plain values, addresses, headers. Out: a frozen `ServerOptions` that can check whether it is safe; a listening
socket; whether a name means this computer. Knows no protocol beyond the names in it.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from edgeinfer.app.server.allowed import allows_host, allows_origin, check_hosts, check_origins
from edgeinfer.errors import BadSetting

if TYPE_CHECKING:
    from edgeinfer.app.mcp.servers import ToolServer

Pooling = Literal["mean", "first", "last", "none"]
"""How embeddings are made of the rows of tokens; as in `engine.embedding`, which is slow to import."""
Part = Literal["page", "slots", "metrics", "pull"]
"""Parts of the server that can be off."""


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """`host`: where to listen, several addresses with commas. `key`: the API key, if any.

    `hosts`: additional host names that requests may use.
    `origins`: web pages that may use the server; none by default. Both may be patterns (`allowed`). `parallel` requests
    run at a time and `queue` more may wait. A model that is idle for `idle_unload_s` is closed (None: never); at most
    `most_models` are open at a time, which take `models_bytes` of memory together (None: what is available). The
    default model answers to `aliases` too, of which the first is what it is called; with `strict_names`, requests for
    unknown names are refused even while one model alone is open. Without `loads_on_demand`, only /models/load loads
    one. `tags`: words that lists show with the default model. `without`: parts of the server that are off. `pooling`:
    how rows of embeddings are combined (None: as the model's file says). `tools`: MCP servers whose trusted tools
    clients may call, and the page all if there is a key. Clients save the cache to files in `slot_folder`, and not
    without one. With `shows_prompts`, whole answers of chats have their prompts beside them. With `fetches_images`,
    images that requests name by http(s) addresses are fetched; otherwise they come with the request.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    key: str | None = field(default=None, repr=False)  # errors show options
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    parallel: int = 8
    queue: int = 64
    contexts: int = 2
    idle_unload_s: float | None = None
    most_models: int = 2
    models_bytes: int | None = None
    loads_on_demand: bool = True
    most_body_bytes: int = 64 << 20
    aliases: tuple[str, ...] = ()
    strict_names: bool = False
    tags: tuple[str, ...] = ()
    without: frozenset[Part] = frozenset()
    pooling: Pooling | None = None
    tools: tuple[ToolServer, ...] = ()
    shows_prompts: bool = False
    slot_folder: Path | None = None
    fetches_images: bool = False

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses to listen at."""
        return tuple(address.strip() for address in self.host.split(","))

    @property
    def is_local(self) -> bool:
        """Whether no other computer reaches the server."""
        return all(map(is_loopback, self.addresses))

    def check(self) -> None:
        """Raises BadSetting if others on the network could use the server without a key, and for useless patterns."""
        check_hosts(self.hosts)
        check_origins(self.origins)
        if self.slot_folder is not None and not self.slot_folder.is_dir():
            raise BadSetting(f"--slot-save-path {self.slot_folder}: there is no such folder")
        if self.key is not None and not self.key.strip():
            raise BadSetting("the key is empty; give one, or unset its variable to serve this computer alone")
        if self.key is not None and self.key != self.key.strip():
            raise BadSetting("the key begins or ends with white space, which clients cannot send; take it away")
        if self.key is not None and not (self.key.isascii() and self.key.isprintable()):
            raise BadSetting(
                "the key has characters that clients cannot send in a header; letters, digits, - and _ work"
            )
        if "," in self.host and not all(self.addresses):
            raise BadSetting(f"--host {self.host!r}: an address is empty")
        reached = next((address for address in self.addresses if not is_loopback(address)), None)
        if self.key is None and reached is not None:
            raise BadSetting(
                f"{reached} can be reached from other computers, so that a key is needed: set EDGEINFER_API_KEY to "
                "a long random text (python -c 'import secrets; print(secrets.token_urlsafe())'), or use 127.0.0.1"
            )

    def knows_host(self, host: str) -> bool:
        """Whether requests may be addressed to this host, with or without a port."""
        name = name_of(host)
        is_own = any(may_be_called(name, address) for address in self.addresses)
        return is_own or allows_host(self.hosts, host, name)

    def knows_origin(self, origin: str) -> bool:
        """Whether pages of this origin may use the server."""
        return allows_origin(self.origins, origin)


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


def may_be_called(name: str, host: str) -> bool:
    """Whether requests to a server at `host` may use this host name, given without its port.

    The computer's local names and `host` are allowed. If `host` is reachable from elsewhere, IP
    addresses and this computer's name are allowed too: foreign DNS can redirect neither to this computer.
    """
    if name.casefold().strip("[]") in {*LOCAL_NAMES, host.casefold()}:
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


def listen_all(addresses: Iterable[str], port: int) -> list[socket.socket]:
    """Open listening sockets, all with the port of the first. Raises BadSetting if one fails."""
    listeners: list[socket.socket] = []
    with ExitStack() as opened:
        for address in addresses:
            listener = listen(address, listeners[0].getsockname()[1] if listeners else port)
            opened.callback(listener.close)
            listeners.append(listener)
        opened.pop_all()
    return listeners


def url_of(listener: socket.socket) -> str:
    """The URL at which a socket is reached over HTTP."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
