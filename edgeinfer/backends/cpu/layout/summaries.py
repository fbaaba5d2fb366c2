"""Memory that budgets of attention take: summaries of pages, and what a pass chooses (`kernels.attention.choice`).

In: layers of a KV cache, limits, a ModelSpec. Out: shapes, byte counts, and the summaries of layers that keep
everything. Loads no compiler.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.base import Limits
from edgeinfer.backends.cpu.layout.attention_records import SUMMARISED_LAYER
from edgeinfer.backends.cpu.layout.padding import CHUNK, padded
from edgeinfer.backends.cpu.layout.pages import KVPool
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.operands import PagedKV
from edgeinfer.graph.ops.attention import Attention
from edgeinfer.jit.memory import address, aligned

Halves = NDArray[np.float16]


def summary_bytes(layer: PagedKV, limits: Limits) -> int:
    """Bytes of the summary of a page of a layer; 0 if none are made."""
    is_summarised = limits.budgets and layer.window is None
    return layer.kv_heads * 2 * padded(layer.key_width) * 2 if is_summarised else 0


def summaries_of(layers: Sequence[PagedKV], limits: Limits) -> list[Halves | None]:
    """Memory for summaries by layer: float16[pages, G, 2, key_padded]; None for layers without."""
    return [
        aligned((limits.n_pages, layer.kv_heads, 2, padded(layer.key_width)), np.float16)
        if summary_bytes(layer, limits)
        else None
        for layer in layers
    ]


def summarised_layers(pools: Sequence[KVPool], summaries: Sequence[Halves | None]) -> NDArray[np.void]:
    """Where the keys and summaries of layers lie: SUMMARISED_LAYER[layers]."""
    found = [(pool, own) for pool, own in zip(pools, summaries, strict=True) if own is not None]
    layers = np.zeros(len(found), SUMMARISED_LAYER)
    for layer, (pool, own) in zip(layers, found, strict=True):
        layer["keys"], layer["values"] = address(pool.keys), address(pool.values)
        layer["bank_pages"], layer["bank_bytes"], layer["places"] = (
            pool.bank_pages,
            pool.bank_bytes,
            address(pool.places),
        )
        layer["key_bytes"], layer["value_bytes"] = pool.layout.key_bytes, pool.layout.value_bytes
        layer["kv_heads"], layer["key_width"] = own.shape[1], pool.layout.key_width
        layer["key_padded"], layer["summaries"] = own.shape[3], address(own)
    return layers


class ChoiceLayout:
    """Shapes of what a pass chooses within budgets; all are empty unless passes may state budgets."""

    def __init__(self, spec: ModelSpec, limits: Limits) -> None:
        ops = [op for op in spec.ops() if isinstance(op, Attention) and op.window is None] if limits.budgets else []
        self.max_chunks = limits.n_context // CHUNK + 1
        self._kv_heads = max((op.kv_heads for op in ops), default=0)
        self._n_tokens = limits.max_tokens if ops else 0
        queries = (op.heads // op.kv_heads * 2 * padded(op.key_width) * 4 for op in ops)
        self.scratch_bytes = padded(max(queries, default=0) + 8 * self.max_chunks, 64) if ops else 0

    @property
    def ranks(self) -> tuple[int, int, int]:
        """int32[T, G, max_chunks]."""
        return self._n_tokens, self._kv_heads, self.max_chunks

    @property
    def lists(self) -> tuple[int, int, int]:
        """int32[n_tiles, G, 1 + max_chunks]."""
        return self._n_tokens, self._kv_heads, 1 + self.max_chunks

    @property
    def nbytes(self) -> int:
        """Bytes of ranks and lists."""
        return 4 * (math.prod(self.ranks) + math.prod(self.lists))
