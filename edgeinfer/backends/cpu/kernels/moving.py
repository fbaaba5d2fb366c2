"""Copying keys and values from slots to slots, in all layers at once.

Memory: COPY_SLOTS records, one for each layer; sources and targets int32[count], of which none is in both. Its NumPy
twin is `pages.KVPool.copy_slots`.
"""

from __future__ import annotations

from collections.abc import Callable

from edgeinfer.backends.cpu.kernels.slots import copy_halves, copy_rounded, page_in_place
from edgeinfer.backends.cpu.records import COPY_SLOTS
from edgeinfer.graph.step import PAGE
from edgeinfer.jit import simd

layer_at = simd.record_at(COPY_SLOTS)
LAYER_BYTES = COPY_SLOTS.itemsize


def copy_slots(int8: str | None) -> Callable[..., None]:
    """The function for pages of float16, or of int8 where `int8` is a text."""

    def copy(layers, n_layers, sources, targets, count):
        for layer in range(n_layers):
            args = layer_at(layers + layer * LAYER_BYTES)
            for place in range(count):
                source, target = simd.load_int32(sources + 4 * place), simd.load_int32(targets + 4 * place)
                for head in range(args.kv_heads):
                    keys, values = page_in_place(args, head, source // PAGE)
                    to_keys, to_values = page_in_place(args, head, target // PAGE)
                    if int8 is None:
                        copy_halves(args, keys, values, source % PAGE, to_keys, to_values, target % PAGE)
                    else:
                        copy_rounded(args, keys, values, source % PAGE, to_keys, to_values, target % PAGE)

    return copy
