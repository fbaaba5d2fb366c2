"""Rows of the embedding, decoded; the few that a text uses again and again are cached.

In: tokens. Out: float32 rows in the buffer that a model begins with. Rows are read straight from the file, so only
those of tokens that occur are ever touched; rows given in place of tokens are copied as they are. Learned positions are
added; these few thousand rows stay decoded.
"""

from __future__ import annotations

import numpy as np

from edgeinfer.backends import weights
from edgeinfer.backends.cpu.layout.padding import embedding_rows
from edgeinfer.graph.operands import Weight
from edgeinfer.graph.ops.embed import Embed
from edgeinfer.graph.step import Floats, InputRows, Int32s
from edgeinfer.jit.memory import aligned
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.quants import decode_rows, format_of

NOBODY = -1
"""The owner of a cache place without a row: no token."""


class Embedding:
    """The embedding of one model. A cached row has the place of its token modulo the number of places.

    `positions`: the rows of learned positions, from that of position 0 on.
    """

    def __init__(self, file: GGUFFile, op: Embed, positions: Weight | None = None) -> None:
        tensor = file.tensors[op.weight.tensor]
        self._format = format_of(tensor.ggml_type)
        self._raw = file.raw(op.weight.tensor).reshape(tensor.shape[0], -1)
        self._width, self._scale = op.weight.columns, np.float32(op.scale)
        self._kept: Floats = aligned((embedding_rows(op.weight), self._width), np.float32)
        self._owners = [NOBODY] * len(self._kept)
        self._positions = None if positions is None else np.array(weights.matrix(file, positions))

    @property
    def nbytes(self) -> int:
        """Bytes of the cached rows."""
        return self._kept.nbytes + (0 if self._positions is None else self._positions.nbytes)

    def write(self, tokens: Int32s, positions: Int32s, out: Floats, rows: InputRows | None = None) -> None:
        """Fill the first rows of float32[n, padded width] with those of the tokens at their positions.

        `rows`: those of tokens below zero. Raises ValueError if there are such tokens and no rows.
        """
        if rows is None:
            self._look_up(tokens, out)
        else:
            is_given = tokens < 0
            self._look_up(np.where(is_given, np.int32(0), tokens), out)
            out[: len(tokens), : self._width][is_given] = rows.values
        if self._positions is not None:
            out[: len(tokens), : self._width] += self._positions[positions]

    def _look_up(self, tokens: Int32s, out: Floats) -> None:
        wanted, owners = tokens.tolist(), self._owners
        if min(wanted) < 0:
            raise ValueError("tokens below zero need rows of numbers")
        slots = [token % len(owners) for token in wanted]
        missing = [
            place for place, (token, slot) in enumerate(zip(wanted, slots, strict=True)) if owners[slot] != token
        ]
        out[: len(slots), : self._width] = self._kept[slots]
        if missing:
            rows = out[missing, : self._width] = self._decoded(tokens[missing])
            for place, row in zip(missing, rows, strict=True):
                self._kept[slots[place]], owners[slots[place]] = row, wanted[place]

    def _decoded(self, tokens: Int32s) -> Floats:
        values = decode_rows(self._raw[tokens], self._format)
        return values if self._scale == 1.0 else values * self._scale
