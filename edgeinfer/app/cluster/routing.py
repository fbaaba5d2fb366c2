"""Ray Serve's request router for replicas of the server: `prefix_memory` decides, Serve sends.

In: requests with their keys (the keyword `keys`), replicas as Serve knows them. Out: replicas, best first. Serve makes
one router for each handle; each learns from the requests that it sent.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from edgeinfer.app.cluster.prefix_memory import PrefixMemory, ReplicaLoad, ranked
from edgeinfer.app.cluster.request_keys import RequestKeys

NO_KEYS = RequestKeys()


class PrefixRouter(RequestRouter):  # type: ignore[misc]
    """Sends requests where the beginning of their texts is cached, unless too much waits there."""

    def initialize_state(self, parallel: int = 1) -> None:
        """`parallel`: requests that a replica runs at a time."""
        self._parallel = parallel
        self._memory = PrefixMemory()
        self._running: defaultdict[str, set[str]] = defaultdict(set)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """The replicas, best first; Serve takes the first that accepts the request."""
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True
        by_name = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        loads = [self._load(name, replica) for name, replica in by_name.items()]
        return [[by_name[name]] for name in ranked(loads, _keys(pending_request), self._memory)]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        """Remember what the replica was given."""
        self._running[replica_id.unique_id].add(pending_request.metadata.internal_request_id)
        self._memory.note(_keys(pending_request), replica_id.unique_id)

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """The replica has one request less."""
        self._running[replica_id.unique_id].discard(internal_request_id)

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Replicas came or ended; what was cached by those that ended is forgotten."""
        left = {replica.replica_id.unique_id for replica in replicas}
        gone = {known.unique_id for known in self.curr_replicas} - left
        if gone:
            self._memory.forget(gone)
            for name in gone:
                self._running.pop(name, None)
        super().update_replicas(replicas)

    def _load(self, name: str, replica: RunningReplica) -> ReplicaLoad:
        """Requests are those that this router sent, or more if the replica says so."""
        told = self.replica_queue_len_cache.get(replica.replica_id) or 0
        models = (replica.routing_stats or {}).get("models")
        known = None if models is None else frozenset(models)
        return ReplicaLoad(name, max(told, len(self._running[name])), self._parallel, known)


def _keys(request: PendingRequest | None) -> RequestKeys:
    found = None if request is None else request.kwargs.get("keys")
    return found if isinstance(found, RequestKeys) else NO_KEYS
