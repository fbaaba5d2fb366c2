"""The step record that kernels read: where this pass's tokens, slots, page tables and attention tiles are.

In: a `base.Step`. Out: arrays at fixed addresses, so that kernel arguments never change between steps. An attention
tile is a run of tokens of one sequence whose contexts all lie in the sequence's pages, or a part of a draft tree, some
of whose tokens lie in a spare page: then every token has a path of slots.
"""

from __future__ import annotations

import numpy as np

from edgeinfer.backends.base import Limits
from edgeinfer.backends.cpu.layout.padding import CHUNK, SPLIT_TOKENS
from edgeinfer.backends.cpu.layout.step_records import STEP, TILE_INTS
from edgeinfer.graph.budget import recent_and_best
from edgeinfer.graph.operands import Rows
from edgeinfer.graph.step import PAGE, Batch, Floats, Int32s, Step
from edgeinfer.jit.memory import address

FEWEST_TILES = 4
"""A draft tree is cut into at least this many tiles for workers to share, or into tiles of FEWEST_TOKENS tokens."""
FEWEST_TOKENS = 4
_PLACES = {name: place for place, name in enumerate(STEP.names or ())}
NO_BLOCKS: Int32s = np.zeros(0, np.int32)
CHANGING = np.array(
    [
        _PLACES[name]
        for name in (
            "n_tokens",
            "n_outputs",
            "tables",
            "table_stride",
            "n_tiles",
            "n_chunks",
            "split",
            "n_blocks",
            "spans",
        )
    ]
)
"""Fields that every step sets."""
PATHS, TURNS = _PLACES["paths"], _PLACES["turns"]


class StepRecord:
    """Owns the arrays of the current step."""

    def __init__(
        self,
        limits: Limits,
        tile_tokens: int,
        *,
        ends: bool = False,
        spans: bool = False,
        scales: tuple[float, ...] = (),
        chooses: bool = False,
    ) -> None:
        """`ends`: whether some attention is over whole texts. `spans`: whether some heeds spans.

        `scales`: of LoRA adapters, where a pass states none. `chooses`: whether blocks of prompts choose what they
        attend to.
        """
        self.adapters = AdapterRows(limits, scales)
        self._tile_tokens = tile_tokens
        self._ends = np.zeros(limits.max_tokens if ends else 0, np.int32)
        self._spans = np.zeros((limits.max_tokens if spans else 0, 2), np.int32)
        self._forks = limits.kv == "f16"
        self.record = np.zeros(1, STEP)
        self._numbers = self.record.view(np.int64)
        self._positions = np.zeros(limits.max_tokens, np.int32)
        self._slots = np.zeros(limits.max_tokens, np.int32)
        self._outputs = np.zeros(limits.max_outputs, np.int32)
        self._tiles = np.zeros((limits.max_tokens, TILE_INTS), np.int32)
        self._tables = np.zeros((1, 1), np.int32)
        self._paths = np.zeros(1, np.int32)
        self._recents = np.zeros(limits.max_tokens if limits.budgets else 0, np.int32)
        self._n_best = np.zeros_like(self._recents)
        self._blocks = np.zeros((limits.max_tokens // PAGE if chooses else 0, 2), np.int32)
        for name in ("positions", "slots", "outputs", "tiles", "ends", "recents", "n_best", "blocks"):
            self.record[name] = address(getattr(self, f"_{name}"))
        self._positions_at = int(self.record["positions"][0])
        self.turn(None)

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

    def scales_at(self, adapter: int, rows: Rows) -> int:
        """Address of the scales of a LoRA adapter, float32 for each row."""
        return address(self.adapters.scales[rows][adapter])

    @property
    def n_outputs(self) -> int:
        """Outputs of the step."""
        return int(self._numbers[_PLACES["n_outputs"]])

    @property
    def n_tiles(self) -> int:
        """Tiles of the step."""
        return int(self._numbers[_PLACES["n_tiles"]])

    @property
    def tiles(self) -> Int32s:
        """The tiles of the step: int32[n_tiles, TILE_INTS]."""
        return self._tiles[: self.n_tiles]

    def turn(self, rows: Int32s | None) -> None:
        """Rows of rotary tables for the tokens, int32[T]; None: those of their positions."""
        self._turns = self._positions if rows is None else rows
        self._numbers[TURNS] = self._positions_at if rows is None else address(rows)

    def fill(self, step: Step) -> None:
        """Load a step."""
        batch = step.batch
        n_tokens, n_outputs = len(batch.tokens), len(batch.outputs)
        self._positions[:n_tokens] = batch.positions
        self._slots[:n_tokens] = step.slots
        self._outputs[:n_outputs] = batch.outputs
        self.adapters.fill(batch)
        if len(self._ends):
            ends = np.zeros(len(step.tables), np.int32)
            np.maximum.at(ends, step.rows, batch.positions)
            self._ends[:n_tokens] = ends[step.rows]
        if batch.budgets is not None:
            self._recents[:n_tokens], self._n_best[:n_tokens] = recent_and_best(batch, step.starts)
        self._tables = np.ascontiguousarray(step.tables, np.int32)
        n_blocks = self._fill_blocks(step)
        if n_tokens == 1 and _is_direct(step):
            last = int(batch.positions[0])
            self._tiles[0] = 0, 1, step.rows[0], step.starts[0], -1, last, last, 0, -1, 0, -1
            n_tiles = 1
        else:
            tiles, self._paths = attention_tiles(
                step, self._tile_tokens, forks=self._forks, blocks=self._blocks[:n_blocks, 0]
            )
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
            n_blocks,
            self._fill_spans(batch),
        )

    def _fill_spans(self, batch: Batch) -> int:
        """Load the spans of a batch; returns their address, 0 if it has none or nothing heeds them."""
        if batch.spans is None or not len(self._spans):
            return 0
        self._spans[: len(batch.spans), 0] = batch.spans[:, 0]
        self._spans[: len(batch.spans), 1] = batch.spans[:, 1] - batch.positions
        return address(self._spans)

    def _fill_blocks(self, step: Step) -> int:
        """Load the blocks of a step that choose what they attend to; returns their number."""
        firsts = step.batch.blocks
        if firsts is None or not len(self._blocks):
            return 0
        self._blocks[: len(firsts), 0], self._blocks[: len(firsts), 1] = firsts, step.rows[firsts]
        return len(firsts)


class AdapterRows:
    """The scales of LoRA adapters for the rows of the current step, and how many rows their products have.

    scales  by kind of rows: float32[A, most rows]
    counts  by kind of rows: int64[A], the rows of the step for adapters that are added to some of them, 0 for others
    used    the adapters that are added to some rows
    """

    def __init__(self, limits: Limits, loaded: tuple[float, ...]) -> None:
        """`loaded`: the scales where a pass states none."""
        self._loaded: Floats = np.array(loaded, np.float32)
        most = {Rows.TOKENS: limits.max_tokens, Rows.OUTPUTS: limits.max_outputs}
        self.scales = {rows: np.zeros((len(loaded), count), np.float32) for rows, count in most.items()}
        self.counts = {rows: np.zeros(len(loaded), np.int64) for rows in Rows}
        self.used: frozenset[int] = frozenset()

    def fill(self, batch: Batch) -> None:
        """Load the scales of a batch."""
        if not len(self._loaded):
            return
        shape = len(batch.tokens), len(self._loaded)
        scales = np.broadcast_to(self._loaded, shape) if batch.scales is None else batch.scales
        is_used = scales.any(axis=0)
        for rows, chosen in ((Rows.TOKENS, scales), (Rows.OUTPUTS, scales[batch.outputs])):
            self.scales[rows][:, : len(chosen)] = chosen.T
            self.counts[rows][:] = is_used * len(chosen)
        self.used = frozenset(np.flatnonzero(is_used).tolist())


class Lists:
    """Parts of a step that are examined token by token, as lists: NumPy scalars take several times as long."""

    def __init__(self, step: Step) -> None:
        batch = step.batch
        self.positions: list[int] = batch.positions.tolist()
        self.parents: list[int] = batch.parents.tolist()
        self.rows: list[int] = step.rows.tolist()
        self.slots: list[int] = step.slots.tolist()
        self.tables: list[list[int]] = step.tables.tolist()


def attention_tiles(
    step: Step, tile_tokens: int, *, forks: bool = True, blocks: Int32s = NO_BLOCKS
) -> tuple[Int32s, Int32s]:
    """Tiles int32[n, TILE_INTS] and the paths they refer to. `forks`: tokens of a draft tree may share a tile.

    `blocks`: the first tokens of blocks that choose what they attend to; a tile lies in one of them or outside of all.
    """
    lists, numbers = Lists(step), {first: number for number, first in enumerate(blocks.tolist())}
    direct, positions, rows, starts = direct_tokens(lists), lists.positions, lists.rows, step.starts.tolist()
    tiles: list[tuple[int, ...]] = []
    paths: list[int] = []
    first, n_tokens = 0, len(rows)
    while first < n_tokens:
        row = rows[first]
        stop = next((token for token in range(first + 1, n_tokens) if rows[token] != row), n_tokens)
        if all(direct[first:stop]):
            tiles += _chains(first, stop, row, starts[first], positions, tile_tokens, numbers)
        else:
            tiles += _forks(lists, first, stop, starts[first], tile_tokens if forks else 1, paths)
        first = stop
    return np.array(tiles, np.int32), np.array(paths or [0], np.int32)


def _chains(
    first: int, stop: int, row: int, start: int, positions: list[int], tile_tokens: int, blocks: dict[int, int]
) -> list[tuple[int, ...]]:
    """Tiles of tokens that lie where the table says, each a run of positions; those of a block are about as long."""
    tiles: list[tuple[int, ...]] = []
    block, block_stop = -1, first
    while first < stop:
        if first in blocks:
            block, block_stop = blocks[first], first + PAGE
        if first < block_stop:
            most = min(-(-PAGE // -(-PAGE // tile_tokens)), block_stop - first)
        else:
            block = -1
            most = min(tile_tokens, min((each for each in blocks if each > first), default=stop) - first)
        end = first + 1
        while end < min(stop, first + most) and positions[end] == positions[end - 1] + 1:
            end += 1
        tiles.append((first, end - first, row, start, -1, positions[first], positions[end - 1], 0, -1, 0, block))
        first = end
    return tiles


def _forks(
    lists: Lists, first: int, stop: int, start: int, tile_tokens: int, paths: list[int]
) -> list[tuple[int, ...]]:
    """Tiles of the tokens of a draft tree; their paths are added to `paths`."""
    row, positions, parents, own_slots = lists.rows[first], lists.positions, lists.parents, lists.slots
    pages = lists.tables[row]
    slots: dict[int, list[int]] = {}  # slots of a token's ancestors in the batch and its own, oldest first
    spare: set[int] = set()
    for token in range(first, stop):
        slot, position = own_slots[token], positions[token]
        slots[token] = [*slots.get(parents[token], ()), slot]
        if slot != pages[position // PAGE] * PAGE + position % PAGE:
            spare.add(slot // PAGE)
    gathers = tile_tokens == 1 or len(spare) > 1
    if gathers:
        tile_tokens = 1
    size = min(tile_tokens, max(FEWEST_TOKENS, -(-(stop - first) // FEWEST_TILES)))
    tiles: list[tuple[int, ...]] = []
    for begin in range(first, stop, size):
        tokens = range(begin, min(begin + size, stop))
        places = [positions[token] for token in tokens]
        width, path = max(places) + 1 - start, len(paths)
        for token in tokens:
            paths += slots[token] + [0] * (width - len(slots[token]))
        number = -1 if gathers else max(spare)  # there is exactly one
        tiles.append((begin, len(tokens), row, start, path, min(places), max(places), width, number, int(gathers), -1))
    return tiles


def _is_direct(step: Step) -> bool:
    """Whether the one token of a step lies where its sequence's table says."""
    position = int(step.batch.positions[0])
    return bool(step.tables[step.rows[0], position // PAGE] * PAGE + position % PAGE == step.slots[0])


def direct_tokens(lists: Lists) -> list[bool]:
    """Which tokens, with all their ancestors in the batch, lie where their sequence's table says."""
    found: list[bool] = []
    tokens = zip(lists.rows, lists.positions, lists.slots, lists.parents, strict=True)
    for row, position, slot, parent in tokens:
        is_own = lists.tables[row][position // PAGE] * PAGE + position % PAGE == slot
        found.append(is_own and (parent < 0 or found[parent]))
    return found
