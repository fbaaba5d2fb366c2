"""Values between ops: named buffers of float32 rows."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Rows(Enum):
    """How many rows a buffer has: one per token of the pass, or one per token whose logits are requested."""

    TOKENS = "tokens"
    OUTPUTS = "outputs"


@dataclass(frozen=True, slots=True)
class Buffer:
    """A named float32 value between ops: float32[T or O, width].

    `place`: another buffer in whose memory it may lie, as no op between its first write and its last read writes there.
    """

    name: str
    width: int
    rows: Rows = Rows.TOKENS
    place: str = ""
