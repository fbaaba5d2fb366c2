"""Slots: names of what finished answers leave in a model's cache, by which clients save, restore and erase it.

In: tokens of finished answers. Out: the tokens that a slot stands for. Unlike llama-server's, answers run in no slot:
each begins with the longest prefix that any other has read, and a slot only remembers the last answer that got it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgeinfer.app.server.errors import APIError
from edgeinfer.engine.requests.prompt_rows import n_common

if TYPE_CHECKING:
    from edgeinfer.engine.requests.adapters import AdapterScales


@dataclass(slots=True)
class CacheSlot:
    """Tokens that were read and written, and the scales of LoRA adapters with which that was done."""

    tokens: tuple[int, ...] = ()
    lora: AdapterScales | None = None
    turn: int = 0


class CacheSlots:
    """The slots of one model. All methods run in the server's event loop.

    `n`: how many there are, which the server's options say.
    """

    def __init__(self) -> None:
        self._slots: dict[int, CacheSlot] = {}
        self._turn = 0

    def choose(self, tokens: Sequence[int], wanted: int | None, n: int) -> int:
        """The slot of an answer: the wanted one, that of a text which it continues, an empty one, or the oldest."""
        if wanted is not None and 0 <= wanted < n:
            return wanted
        text = tuple(tokens)
        shares = {number: n_common(text, slot.tokens) for number, slot in self._slots.items() if slot.tokens}
        best = max(shares, key=lambda number: shares[number], default=None)
        if best is not None and 2 * shares[best] >= len(self._slots[best].tokens):
            return best
        empty = next((number for number in range(n) if number not in shares), None)
        return min(shares, key=lambda number: self._slots[number].turn) if empty is None else empty

    def put(self, number: int, tokens: Sequence[int], lora: AdapterScales | None = None) -> None:
        """Remember what an answer, or a saved state, has left."""
        self._turn += 1
        self._slots[number] = CacheSlot(tuple(tokens), lora, self._turn)

    def tokens(self, number: int) -> tuple[int, ...]:
        """The tokens of a slot; () if nothing was given to it."""
        return self._slots.get(number, CacheSlot()).tokens

    def slot(self, number: int, n: int) -> CacheSlot:
        """A slot by its number. Raises APIError."""
        if not 0 <= number < n:
            raise APIError(400, f"Invalid slot ID: there is no slot {number}; there are 0 to {n - 1}", param="id_slot")
        return self._slots.get(number, CacheSlot())
