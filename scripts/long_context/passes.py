"""Passes over one long text whose pages are in order, as lanes take them. In: tokens. Out: a `Step`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgeinfer.graph.step import Batch, Int32s, Step, whole_blocks

PASS_TOKENS = 256


def step_of(
    tokens: Sequence[int] | Int32s, first: int, n_pages: int, n_outputs: int = 0, *, blocks: bool = False
) -> Step:
    """A step of tokens after the `first` ones, with logits of the last `n_outputs`; `blocks`: read as a prompt's."""
    ids = np.asarray(tokens, np.int32)
    order = np.arange(len(ids), dtype=np.int32)
    zeros, positions = np.zeros_like(order), order + np.int32(first)
    starts = whole_blocks(first, len(ids)) if blocks else None
    batch = Batch(ids, zeros, positions, order - np.int32(1), order[len(order) - n_outputs :], blocks=starts)
    return Step(batch, zeros, positions, np.full_like(order, first), np.arange(n_pages, dtype=np.int32)[None])
