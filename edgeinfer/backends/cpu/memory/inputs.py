"""Buffers that are filled before a pass: embeddings, rows of further tables, hidden rows, further parts of input rows.

In: a batch. Out: rows of the buffers that the model's ops name. Runs no kernels.
"""

from __future__ import annotations

from collections.abc import Mapping

from edgeinfer.backends.base import Limits
from edgeinfer.backends.cpu.layout.padding import learned_positions
from edgeinfer.backends.cpu.memory.tables import Embedding
from edgeinfer.errors import UnsupportedModel
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.ops.deep_rows import DeepRows
from edgeinfer.graph.ops.embed import Embed
from edgeinfer.graph.ops.hidden_rows import HiddenRows
from edgeinfer.graph.ops.token_rows import TokenRows
from edgeinfer.graph.step import Batch, Floats
from edgeinfer.models.gguf import GGUFFile


class PassInputs:
    """Those of one model."""

    def __init__(self, spec: ModelSpec, file: GGUFFile, limits: Limits, arrays: Mapping[str, Floats]) -> None:
        """`arrays`: the model's buffers."""
        embed = embedding_of(spec)
        self._embedding: tuple[Embedding, Floats] | None = None
        if embed is not None:  # else another device has it
            self._embedding = Embedding(file, embed, learned_positions(spec, limits)), arrays[embed.out]
        further = [op for op in spec.ops() if isinstance(op, TokenRows)]
        self._tables = [(Embedding(file, op), arrays[op.out]) for op in further]
        self._hidden = [(op, arrays[op.out]) for op in spec.ops() if isinstance(op, HiddenRows)]
        self._deep = [(op, arrays[op.out]) for op in spec.ops() if isinstance(op, DeepRows)]

    @property
    def nbytes(self) -> int:
        """Bytes of cached rows and learned positions."""
        kept = 0 if self._embedding is None else self._embedding[0].nbytes
        return kept + sum(table.nbytes for table, _ in self._tables)

    def write(self, batch: Batch, *, deep: bool) -> None:
        """Fill the buffers for a batch. `deep`: whether further parts of rows are read."""
        if self._embedding is not None:
            table, out = self._embedding
            table.write(batch.tokens, batch.positions, out, batch.rows)
        for table, out in self._tables:
            table.write_rows(batch.tokens, out)
        for op, out in self._hidden:
            assert batch.hidden is not None
            out[: len(batch.hidden), : op.width] = batch.hidden[:, op.first : op.first + op.width]
            out[: len(batch.hidden), op.width :] = 0  # the memory may be that of other buffers too
        for part, out in self._deep if deep else ():
            part.fill(batch, out[: len(batch.tokens), : part.width])


def embedding_of(spec: ModelSpec) -> Embed | None:
    """The op that embeds tokens, None if another device has it. Raises UnsupportedModel if there are several."""
    found = [op for op in spec.ops() if isinstance(op, Embed)]
    if len(found) > 1:
        raise UnsupportedModel(f"{spec.architecture} has {len(found)} embeddings; the CPU device takes models with one")
    return found[0] if found else None
