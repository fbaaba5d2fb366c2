"""Values passed between ops: named buffers of float32 rows."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Rows(Enum):
    """Number of rows in a buffer: one per token of the pass, or one per token whose logits are requested."""

    TOKENS = "tokens"
    OUTPUTS = "outputs"


@dataclass(frozen=True, slots=True)
class Buffer:
    """A named float32 value passed between ops: float32[T or O, width].

    `place` names another buffer whose memory this one may share: no op writes to that one between this buffer's first
    write and its last read.
    """

    name: str
    width: int
    rows: Rows = Rows.TOKENS
    place: str = ""
