"""Responses that later requests may name, in memory: the latest, up to a number and a size.

In: finished responses, and the items of their conversations. Out: the same, until newer ones take their place. Nothing
is written to disk; another server does not know them.
"""

from __future__ import annotations

import json
import secrets
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from edgeinfer.app.server.errors import APIError
from edgeinfer.app.server.objects import Record
from edgeinfer.app.server.responses_schemas import REFERENCE, Item

MOST_RESPONSES = 1000
MOST_BYTES = 128 << 20
"""Most bytes of all responses, and of the items of all conversations with their images, as JSON."""
_PREFIXES: Mapping[str, str] = MappingProxyType(
    {"function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}
)


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response, and all items of its conversation: the first `n_input` were asked, the others answered.

    Every item has an id. `n_bytes`: of the response without them.
    """

    record: Record
    items: tuple[Item, ...]
    n_input: int
    n_bytes: int


class StoredResponses:
    """The responses of one server. Used from its event loop alone."""

    def __init__(self, most: int = MOST_RESPONSES, most_bytes: int = MOST_BYTES) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._stored: OrderedDict[str, StoredResponse] = OrderedDict()
        self._items: dict[str, tuple[Item, int]] = {}
        """Items by their ids, with the number of conversations that each is in."""
        self._sizes: dict[int, tuple[int, int]] = {}
        """Bytes of items, and how many conversations share each: by `id` of the object, as clients choose names."""
        self.n_bytes = 0

    def get(self, identity: str) -> StoredResponse | None:
        """A response by its id; those used last stay longest."""
        found = self._stored.get(identity)
        if found is not None:
            self._stored.move_to_end(identity)
        return found

    def put(self, record: Record, items: Sequence[Item]) -> None:
        """Keep a response with the items that led to it; its own output follows them."""
        whole = tuple(map(_named, (*items, *map(Item.model_validate, record["output"]))))
        n_bytes = len(json.dumps(record))
        self._stored[record["id"]] = StoredResponse(record, whole, len(items), n_bytes)
        self.n_bytes += n_bytes
        for item in whole:
            assert item.id is not None
            self._items[item.id] = (item, self._items.get(item.id, (item, 0))[1] + 1)
            self._share(item)
        while self._stored and (len(self._stored) > self._most or self.n_bytes > self._most_bytes):
            self._forget(self._stored.popitem(last=False)[1])

    def _share(self, item: Item) -> None:
        """Count the bytes of an item once, however many conversations it is in."""
        known = self._sizes.get(id(item))
        if known is None:
            n_bytes = len(json.dumps(item.model_dump(exclude_none=True)))  # texts need not be Unicode
            self.n_bytes += n_bytes
            known = n_bytes, 0
        self._sizes[id(item)] = known[0], known[1] + 1

    def resolved(self, items: Sequence[Item], earlier: Sequence[Item]) -> list[Item]:
        """Items with those that they refer to; what is among `earlier` ones is there already. Raises APIError."""
        there = {item.id for item in earlier}
        found: list[Item] = []
        for number, item in enumerate(items):
            if item.type != REFERENCE:
                found.append(item)
            elif item.id not in there:
                known = self._items.get(item.id or "")
                if known is None:
                    reason = f"there is no item {item.id!r}: the server keeps those of the latest responses, in memory"
                    raise APIError(404, reason, "not_found", f"input[{number}]")
                found.append(known[0])
        return found

    def delete(self, identity: str) -> bool:
        """Forget a response. Returns whether there was one."""
        gone = self._stored.pop(identity, None)
        if gone is not None:
            self._forget(gone)
        return gone is not None

    def _forget(self, gone: StoredResponse) -> None:
        """Forget what only a response that is gone had."""
        self.n_bytes -= gone.n_bytes
        for item in gone.items:
            assert item.id is not None
            known, n = self._items.pop(item.id)
            if n > 1:
                self._items[item.id] = (known, n - 1)
            n_bytes, n = self._sizes.pop(id(item))
            if n > 1:
                self._sizes[id(item)] = n_bytes, n - 1
            else:
                self.n_bytes -= n_bytes


def _named(item: Item) -> Item:
    """An item with an id."""
    if item.id is not None:
        return item
    return item.model_copy(update={"id": f"{_PREFIXES.get(item.type, 'msg')}_{secrets.token_hex(16)}"})
