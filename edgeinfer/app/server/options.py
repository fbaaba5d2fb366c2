"""Server options: address, access, concurrency.

In: plain values. Out: a frozen `ServerOptions` that can check whether it is safe. Opens nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgeinfer.app.listening import is_loopback, may_be_called
from edgeinfer.errors import BadSetting


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """`key`: the API key, if any. `hosts`: additional host names that requests may use.

    `origins`: web pages that may use the server; none by default. `parallel` requests run at a time and `queue` more
    may wait. A model that is idle for `idle_unload_s` is closed (None: never); at most `most_models` are open at a
    time.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    key: str | None = None
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    parallel: int = 8
    queue: int = 64
    contexts: int = 2
    idle_unload_s: float | None = None
    most_models: int = 2
    most_body_bytes: int = 16 << 20

    def check(self) -> None:
        """Raises BadSetting if others on the network could use the server without a key."""
        if self.key is not None and not self.key.strip():
            raise BadSetting("the key is empty; give one, or unset its variable to serve this computer alone")
        if self.key is not None and self.key != self.key.strip():
            raise BadSetting("the key begins or ends with white space, which clients cannot send; take it away")
        if self.key is None and not is_loopback(self.host):
            raise BadSetting(
                f"{self.host} can be reached from other computers, so that a key is needed: set EDGEINFER_API_KEY to "
                "a long random text (python -c 'import secrets; print(secrets.token_urlsafe())'), or use 127.0.0.1"
            )

    def knows_host(self, name: str) -> bool:
        """Whether requests may be addressed to this host name (without port)."""
        return may_be_called(name, self.host, self.hosts)
