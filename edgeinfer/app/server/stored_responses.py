"""Responses that later requests may name, in memory: the latest, up to a number and a size.

In: finished responses, and the items of their conversations. Out: the same, until newer ones take their place. Nothing
is written to disk; another server does not know them.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from edgeinfer.app.server.objects import Record
from edgeinfer.app.server.responses_schemas import Item

MOST_RESPONSES = 1000
MOST_BYTES = 64 << 20
"""Most bytes of all responses and conversations, as JSON."""


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response, and all items of its conversation: what was asked, and what was answered."""

    record: Record
    items: tuple[Item, ...]
    n_bytes: int


class StoredResponses:
    """The responses of one server. Used from its event loop alone."""

    def __init__(self, most: int = MOST_RESPONSES, most_bytes: int = MOST_BYTES) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._stored: OrderedDict[str, StoredResponse] = OrderedDict()
        self.n_bytes = 0

    def get(self, identity: str) -> StoredResponse | None:
        """A response by its id; those used last stay longest."""
        found = self._stored.get(identity)
        if found is not None:
            self._stored.move_to_end(identity)
        return found

    def put(self, record: Record, items: Sequence[Item]) -> None:
        """Keep a response with the items that led to it; its own output follows them."""
        whole = (*items, *map(Item.model_validate, record["output"]))
        n_bytes = len(json.dumps(record)) + sum(len(item.model_dump_json(exclude_none=True)) for item in whole)
        self._stored[record["id"]] = StoredResponse(record, whole, n_bytes)
        self.n_bytes += n_bytes
        while self._stored and (len(self._stored) > self._most or self.n_bytes > self._most_bytes):
            self.n_bytes -= self._stored.popitem(last=False)[1].n_bytes

    def delete(self, identity: str) -> bool:
        """Forget a response. Returns whether there was one."""
        gone = self._stored.pop(identity, None)
        if gone is not None:
            self.n_bytes -= gone.n_bytes
        return gone is not None
