"""The step record that kernels read: where this pass's tokens, slots, page tables and attention tiles are.

In: a `base.Step`. Out: arrays at fixed addresses, so that kernel arguments never change between steps. An attention
tile is a run of tokens of one sequence whose contexts all lie in the sequence's pages; a token of a draft tree whose
ancestors lie elsewhere is a tile of its own with a path of slots.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.base import PAGE, Int32s, Limits, Step
from edgeinfer.backends.cpu.layout import CHUNK, SPLIT_TOKENS

STEP = np.dtype(
    [
        ("n_tokens", "i8"),
        ("n_outputs", "i8"),
        ("positions", "i8"),  # int32[T]
        ("slots", "i8"),  # int32[T]
        ("outputs", "i8"),  # int32[O]
        ("tables", "i8"),  # int32[B, table_stride / 4]
        ("table_stride", "i8"),  # bytes
        ("tiles", "i8"),  # int32[n_tiles, TILE_INTS]: first token, tokens, table row, start, path offset or -1
        ("n_tiles", "i8"),
        ("paths", "i8"),  # int32: slots of ancestors from `start` on, by position
        ("n_chunks", "i8"),  # chunks of CHUNK positions of the longest context
        ("split", "i8"),  # 1: attention is cut by chunks, 0: by tiles
    ]
)
TILE_INTS = 8
_PLACES = {name: place for place, name in enumerate(STEP.names or ())}
CHANGING = np.array(
    [_PLACES[name] for name in ("n_tokens", "n_outputs", "tables", "table_stride", "n_tiles", "n_chunks", "split")]
)
"""Fields that every step sets."""
PATHS = _PLACES["paths"]


def address(array: NDArray[np.generic]) -> int:
    """Where an array's first element lies."""
    return int(array.ctypes.data)


class StepRecord:
    """Owns the arrays of the current step."""

    def __init__(self, limits: Limits, tile_tokens: int) -> None:
        self._tile_tokens = tile_tokens
        self.record = np.zeros(1, STEP)
        self._numbers = self.record.view(np.int64)
        self._positions = np.zeros(limits.max_tokens, np.int32)
        self._slots = np.zeros(limits.max_tokens, np.int32)
        self._outputs = np.zeros(limits.max_outputs, np.int32)
        self._tiles = np.zeros((limits.max_tokens, TILE_INTS), np.int32)
        self._tables = np.zeros((1, 1), np.int32)
        self._paths = np.zeros(1, np.int32)
        for name in ("positions", "slots", "outputs", "tiles"):
            self.record[name] = address(getattr(self, f"_{name}"))

    @property
    def n_tokens_at(self) -> int:
        """Address of the number of tokens."""
        return address(self.record)

    @property
    def n_outputs_at(self) -> int:
        """Address of the number of outputs."""
        return address(self.record) + 8

    @property
    def outputs_at(self) -> int:
        """Address of the address of the output rows."""
        return address(self.record) + _PLACES["outputs"] * 8

    def fill(self, step: Step) -> None:
        """Take over a step."""
        batch = step.batch
        n_tokens, n_outputs = len(batch.tokens), len(batch.outputs)
        self._positions[:n_tokens] = batch.positions
        self._slots[:n_tokens] = step.slots
        self._outputs[:n_outputs] = batch.outputs
        self._tables = np.ascontiguousarray(step.tables, np.int32)
        if n_tokens == 1 and _is_direct(step):
            self._tiles[0, :5] = 0, 1, step.rows[0], step.starts[0], -1
            n_tiles, last = 1, int(batch.positions[0])
        else:
            tiles, self._paths = attention_tiles(step, self._tile_tokens)
            n_tiles, last = len(tiles), int(batch.positions.max())
            self._tiles[:n_tiles, : tiles.shape[1]] = tiles
            self._numbers[PATHS] = address(self._paths)
        self._numbers[CHANGING] = (
            n_tokens,
            n_outputs,
            address(self._tables),
            self._tables.strides[0],
            n_tiles,
            last // CHUNK + 1,
            n_tokens <= SPLIT_TOKENS,
        )


def attention_tiles(step: Step, tile_tokens: int) -> tuple[Int32s, Int32s]:
    """Tiles int32[n, 5] (first token, tokens, table row, start, path offset or -1) and the paths they name."""
    batch = step.batch
    direct = direct_tokens(step)
    tiles: list[tuple[int, int, int, int, int]] = []
    paths: list[int] = []
    first = 0
    n_tokens = len(batch.tokens)
    while first < n_tokens:
        row, start = int(step.rows[first]), int(step.starts[first])
        if not direct[first]:
            tiles.append((first, 1, row, start, len(paths)))
            paths += _path(step, first)
            first += 1
            continue
        stop = first + 1
        while (
            stop < min(n_tokens, first + tile_tokens)
            and direct[stop]
            and step.rows[stop] == row
            and batch.positions[stop] == batch.positions[stop - 1] + 1
        ):
            stop += 1
        tiles.append((first, stop - first, row, start, -1))
        first = stop
    return np.array(tiles, np.int32), np.array(paths or [0], np.int32)


def _is_direct(step: Step) -> bool:
    """Whether the one token of a step lies where its sequence's table says."""
    position = int(step.batch.positions[0])
    return bool(step.tables[step.rows[0], position // PAGE] * PAGE + position % PAGE == step.slots[0])


def direct_tokens(step: Step) -> NDArray[np.bool_]:
    """Tokens that, like all their ancestors in the batch, lie where their sequence's table says: bool[T]."""
    positions = step.batch.positions
    direct: NDArray[np.bool_] = step.tables[step.rows, positions // PAGE] * PAGE + positions % PAGE == step.slots
    if not direct.all():
        for token, parent in enumerate(step.batch.parents):
            direct[token] &= parent < 0 or direct[parent]
    return direct


def _path(step: Step, token: int) -> list[int]:
    """Slots of a token's ancestors in the batch and its own, oldest first."""
    slots: list[int] = []
    while token >= 0:
        slots.append(int(step.slots[token]))
        token = int(step.batch.parents[token])
    return slots[::-1]
