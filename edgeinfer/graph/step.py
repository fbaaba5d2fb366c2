"""What one pass evaluates, and where in the KV cache it stands.

KV memory is cut into pages of PAGE positions; a slot is page * PAGE + offset.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

PAGE = 64
"""Positions of a KV page; also the attention's fixed chunk, so that sums never depend on the batch."""

Int32s = NDArray[np.int32]
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Batch:
    """T tokens to evaluate in one pass, in an order where parents precede children.

    tokens     int32[T]
    sequences  int32[T]  id of the sequence each token continues
    positions  int32[T]  position of each token in its sequence
    parents    int32[T]  index in this batch of the token before it, or -1: the last cached token of its sequence
    outputs    int32[O]  indices of the tokens whose logits are wanted, increasing
    """

    tokens: Int32s
    sequences: Int32s
    positions: Int32s
    parents: Int32s
    outputs: Int32s


@dataclass(frozen=True, slots=True)
class StateStep:
    """Where the states of a pass's sequences lie; rows are those of `Step.tables`.

    firsts    int32[B]     the first token of each row; its others follow it
    loads     int32[B]     slot of the state that each row begins with, -1: zeros
    settled   int32[B]     the first so many tokens of each row are a chain and will be kept
    saves     int32[N, 3]  (row, n, slot): the state after the first n settled tokens of a row is written to a slot
    """

    firsts: Int32s
    loads: Int32s
    settled: Int32s
    saves: Int32s


@dataclass(frozen=True, slots=True)
class Step:
    """A batch placed in KV memory.

    rows    int32[T]     row of `tables` that belongs to each token's sequence
    slots   int32[T]     KV slot each token's key and value are written to
    starts  int32[T]     positions below it are read through `tables`, from it on they are the token's ancestors
                         in the batch and the token itself
    tables  int32[B, P]  page of each PAGE positions of a sequence; -1 where none is needed
    states  of models whose sequences have some
    """

    batch: Batch
    rows: Int32s
    slots: Int32s
    starts: Int32s
    tables: Int32s
    states: StateStep | None = None

    def context_slots(self, token: int) -> NDArray[np.int64]:
        """KV slots a token attends to, by position: cached ones through the table, then its ancestors and itself."""
        start = int(self.starts[token])
        positions = np.arange(start)
        cached = self.tables[self.rows[token]].astype(np.int64)[positions // PAGE] * PAGE + positions % PAGE
        path: list[int] = []
        while token >= 0:
            path.append(int(self.slots[token]))
            token = int(self.batch.parents[token])
        return np.concatenate([cached, np.array(path[::-1], np.int64)])
