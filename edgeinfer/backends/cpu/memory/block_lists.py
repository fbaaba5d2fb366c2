"""Memory of what blocks of prompts choose (`kernels.attention.block_choice`), shared by the layers of a model.

In: a ModelSpec, limits, argument records. Out: records with their fields for it. Takes none without a budget.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.base import Limits
from edgeinfer.backends.cpu.layout.padding import CHUNK, padded
from edgeinfer.graph.block_choice import SAMPLED, n_chosen
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.ops.attention import Attention
from edgeinfer.graph.step import PAGE, Floats, Int32s
from edgeinfer.jit.memory import address, aligned


class BlockLists:
    """Lists of chunks, and room to choose them."""

    def __init__(self, spec: ModelSpec, limits: Limits, n_workers: int) -> None:
        ops = [op for op in spec.ops() if isinstance(op, Attention) and op.block_budget is not None]
        max_chunks, repeats = limits.n_context // CHUNK + 1, max((op.heads // op.kv_heads for op in ops), default=0)
        most = max((min(n_chosen(op.block_budget or 0), max_chunks) for op in ops), default=0)
        n_lists = limits.max_tokens // PAGE * max((op.kv_heads for op in ops), default=0)
        self._lists: Int32s = aligned((n_lists, padded(2 + most)), np.int32)
        shape = n_workers, 1 + 2 * SAMPLED * repeats, padded(max_chunks)
        self._attention: Floats = aligned(shape if ops else (0, 0, 0), np.float32)

    @property
    def nbytes(self) -> int:
        """Bytes of all of it."""
        return self._lists.nbytes + self._attention.nbytes

    def fill(self, args: NDArray[np.void], budget: int) -> None:
        """Set the fields of an attention record, for blocks with a budget."""
        args["block_lists"], args["block_list_bytes"] = address(self._lists), self._lists.strides[0]
        args["block_chunks"] = n_chosen(budget)
        args["block_attention"], args["block_attention_stride"] = address(self._attention), self._attention.strides[0]
        args["block_attention_row"] = self._attention.strides[1]
