"""Which replica a request goes to: where its text need not be read again, unless too much waits there.

In: the keys of requests, the replicas with their load. Out: replicas, best first. Everything is counted in bytes of
text to read: what a replica would have to read of the request, what runs there, and a model it would have to load. So
a long conversation waits for its replica a while, and a short question goes wherever nothing runs. Which texts a
replica has is known by the requests it was given; it may have dropped them, which costs the reading. Pure.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from edgeinfer.app.cluster.request_keys import RequestKeys

MOST_KEYS = 200_000
"""Keys that are remembered; those used last stay longest."""
RUNNING_BYTES = 2_000
"""What a running request costs the others of its replica, in bytes of text (four of them a token) to read."""
WAITING_BYTES = 40_000
"""What a request costs those behind it in the queue of a replica that runs as many as it can."""
LOADING_BYTES = 400_000
"""What loading a model costs."""


@dataclass(frozen=True, slots=True)
class ReplicaLoad:
    """A replica: requests that it has, how many of them run at a time, and the models it has open.

    `models`: their names and aliases, "" for the default one; None: not known yet.
    """

    name: str
    n_requests: int
    parallel: int
    models: frozenset[str] | None = None


class PrefixMemory:
    """Which replica was given which beginnings of texts."""

    def __init__(self, most: int = MOST_KEYS) -> None:
        self._most = most
        self._replicas: OrderedDict[str, set[str]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._replicas)

    def note(self, keys: RequestKeys, replica: str) -> None:
        """A replica was given a request."""
        for digest in _digests(keys):
            self._replicas.setdefault(digest, set()).add(replica)
            self._replicas.move_to_end(digest)
        while len(self._replicas) > self._most:
            self._replicas.popitem(last=False)

    def forget(self, gone: set[str]) -> None:
        """Replicas have ended."""
        for digest, replicas in list(self._replicas.items()):
            replicas -= gone
            if not replicas:
                del self._replicas[digest]

    def known_bytes(self, keys: RequestKeys) -> dict[str, int]:
        """How much of a text each replica has read; those with nothing are left out."""
        known: dict[str, int] = {}
        for key in keys.prefix:
            replicas = self._replicas.get(key.digest)
            if replicas is None:
                break
            known |= dict.fromkeys(replicas, key.n_bytes)
        return known

    def session_of(self, keys: RequestKeys) -> set[str]:
        """The replicas that were given the conversation."""
        return self._replicas.get(_session_digest(keys.session), set()) if keys.session else set()


def ranked(replicas: Sequence[ReplicaLoad], keys: RequestKeys, memory: PrefixMemory) -> list[str]:
    """The names of replicas, best first; one alone if only that has what the request asks for."""
    names = {replica.name for replica in replicas}
    if keys.holder in names:
        return [keys.holder]
    if kept := sorted(memory.session_of(keys) & names):
        return kept[:1]
    known = memory.known_bytes(keys)
    first = keys.session or (keys.prefix[0].digest if keys.prefix else keys.model)

    def order(replica: ReplicaLoad) -> tuple[float, str]:
        to_read = keys.n_bytes - known.get(replica.name, 0)
        return to_read + _busy_bytes(replica, keys.model), _mixed(first, replica.name)

    return [replica.name for replica in sorted(replicas, key=order)]


def _busy_bytes(replica: ReplicaLoad, model: str) -> float:
    n_running = min(replica.n_requests, replica.parallel)
    n_waiting = replica.n_requests - n_running
    is_loaded = replica.models is None or model in replica.models
    return n_running * RUNNING_BYTES + n_waiting * WAITING_BYTES + (0 if is_loaded else LOADING_BYTES)


def _digests(keys: RequestKeys) -> list[str]:
    session = [_session_digest(keys.session)] if keys.session else []
    return [*session, *(key.digest for key in keys.prefix)]


def _session_digest(session: str) -> str:
    return f"session {session}"


def _mixed(key: str, replica: str) -> str:
    """A number that spreads keys over replicas, the same wherever it is asked."""
    return hashlib.blake2b(f"{key} {replica}".encode("utf-8", "replace"), digest_size=8).hexdigest()
