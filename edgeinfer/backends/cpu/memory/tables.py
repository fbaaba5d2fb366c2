"""What a pass looks up before its first op: rows of the embedding by token, rotary cosines and sines by position.

In: tokens and positions. Out: float32 rows. Rows of the embedding, and of any further table, are read straight from the
file, so only those of tokens that occur are ever touched; the few that a text uses again and again are cached decoded,
as are learned positions, which are added. Rotations are computed only as far as passes reach, as a long context would
delay the start: arrays float32[n_context, rotary_width / 2] that stay in place, filled from the start on. If pairs turn
by several axes, the rows after those serve tokens of the pass whose axes differ: each pair's number comes from the row
of its own position.
"""

from __future__ import annotations

import numpy as np

from edgeinfer.backends import weights
from edgeinfer.backends.cpu.layout.padding import embedding_rows
from edgeinfer.graph.operands import Weight
from edgeinfer.graph.ops.embed import Embed
from edgeinfer.graph.ops.token_rows import TokenRows
from edgeinfer.graph.rotary import RopeSections, RopeTable
from edgeinfer.graph.step import Floats, InputRows, Int32s
from edgeinfer.jit.memory import aligned
from edgeinfer.models import rope
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.quants import decode_rows, format_of

NOBODY = -1
"""The owner of a cache place without a row: no token."""


class Embedding:
    """The embedding of one model, or a further table. A cached row has the place of its token modulo their number.

    `positions`: the rows of learned positions, from that of position 0 on.
    """

    def __init__(self, file: GGUFFile, op: Embed | TokenRows, positions: Weight | None = None) -> None:
        tensor = file.tensors[op.weight.tensor]
        self._file, self._tensor = file, op.weight.tensor
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
            out[: len(tokens), : self._width][is_given] = rows.values[:, : self._width]
        if self._positions is not None:
            out[: len(tokens), : self._width] += self._positions[positions]

    def write_rows(self, tokens: Int32s, out: Floats) -> None:
        """Fill the first rows of float32[n, padded width] with those of the tokens; token 0 for any below zero."""
        self._look_up(np.maximum(tokens, np.int32(0)), out)

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
        self._file.check_whole(self._tensor)
        values = decode_rows(self._raw[tokens], self._format)
        return values if self._scale == 1.0 else values * self._scale


AT_ONCE = 1024
"""Positions computed at a time."""


class Rotations:
    """The tables of one model."""

    def __init__(self, file: GGUFFile, n_context: int, max_tokens: int) -> None:
        """`max_tokens`: most tokens of a pass."""
        self._file, self._n_context, self._max_tokens, self._n_made = file, n_context, max_tokens, 0
        self._tables: dict[RopeTable, tuple[Floats, Floats]] = {}
        self._sections: dict[RopeTable, RopeSections] = {}
        self._factors: dict[RopeTable, Floats | None] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of all tables."""
        return sum(array.nbytes for pair in self._tables.values() for array in pair)

    def of(self, table: RopeTable, sections: RopeSections | None = None) -> tuple[Floats, Floats]:
        """Cosines and sines of a table. Request all tables before computing any position. Raises BadGGUF.

        `sections`: those of its pairs; the same for all ops with this table.
        """
        if table not in self._tables:
            factors = weights.rope_factors(self._file, table)
            rope.frequencies(table, factors)  # refuses at once a table that cannot be computed
            n_rows = self._n_context
            if sections is not None:
                self._sections[table] = sections
                n_rows += self._max_tokens
            shape = (n_rows, table.rotary_width // 2)
            self._tables[table] = aligned(shape, np.float32), aligned(shape, np.float32)
            self._factors[table] = factors
        return self._tables[table]

    def reach(self, n_positions: int) -> None:
        """Compute the positions before `n_positions`; after an interruption the next call computes what is missing."""
        if n_positions <= self._n_made:
            return
        first, end = self._n_made, min(self._n_context, -(-n_positions // AT_ONCE) * AT_ONCE)
        for table, (cosines, sines) in self._tables.items():
            cosines[first:end], sines[first:end] = rope.rotations(table, end, self._factors[table], first)
        self._n_made = end

    def rows_of(self, axes: Int32s) -> Int32s:
        """The table row for each token of a pass, int32[T], computed if necessary. `axes`: int32[T, 3]."""
        self.reach(1 + int(axes.max()))
        rows = axes[:, 0].copy()
        differing = np.flatnonzero((axes != axes[:, :1]).any(axis=1))
        if len(differing):
            rows[differing] = self._n_context + np.arange(len(differing), dtype=np.int32)
            for table, sections in self._sections.items():
                positions, pairs = axes[differing][:, sections.axes()], np.arange(table.rotary_width // 2)
                for array in self._tables[table]:
                    array[self._n_context : self._n_context + len(differing)] = array[positions, pairs]
        return rows
