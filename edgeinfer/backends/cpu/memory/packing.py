"""Packs a model's matrices into panels at load; each worker packs the panels that it will read.

In: a GGUF file and weights. Out: a PackedMatrix per weight (and head padding). A tied matrix is packed once. One matrix
becomes jobs for the compiled packing, for any part of its panels and any order of its rows; formats whose bit layout is
unknown are unpacked to codes with their NumPy definition instead. Pages of the file are given back along the way, so
that little of it is in memory beside the panels.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends import weights
from edgeinfer.backends.base import WHOLE, WorkSplit
from edgeinfer.backends.cpu.catalogue import PACK_PANELS
from edgeinfer.backends.cpu.layout.panels import PANEL_ROWS, UNIT_ROWS, IntegerPanel, Panel, pack_codes, panel_for
from edgeinfer.backends.cpu.layout.recipes import Recipes
from edgeinfer.backends.cpu.layout.records import PACKING_JOB
from edgeinfer.backends.cpu.workers.worker_pool import pin
from edgeinfer.graph.operands import Weight
from edgeinfer.jit.library import KernelLibrary
from edgeinfer.jit.memory import address, aligned
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.quants import BlockFormat, format_of
from edgeinfer.offload.bundle import Key
from edgeinfer.steps import Progress

if TYPE_CHECKING:
    from edgeinfer.backends.cpu.record_layers import PlacedRecords


UNPACKED_PANELS = 64
"""Panels that are unpacked at a time: a few megabytes."""

Job = tuple[int, ...]
"""The fields of a `kernels.weights.packing.JOB`."""


class MatrixPacking:
    """The packing of one matrix into `data`, uint8[n_panels, panel_bytes] of zeros; `order` as `packing.row_order`.

    Owns what its jobs point to, except for the recipes.
    """

    def __init__(
        self, file: GGUFFile, weight: Weight, order: NDArray[np.int64], data: NDArray[np.uint8], recipes: Recipes
    ) -> None:
        info = file.tensors[weight.tensor]
        self._form, self._data = format_of(info.ggml_type), data
        self._raw = weights.tensor_rows(file, weight)
        self._parts = recipes.parts(self._form, weight.columns)
        row_bytes = self._raw.shape[1]
        self.source_bytes = weight.n_rows * row_bytes
        self._zeros = np.zeros(row_bytes, np.uint8)  # all-zero blocks are zeros in every format
        own = weights.row_order(weight)
        taken = order if own is None else own[order]
        self._order = np.where(order < 0, -1, taken + weight.start)
        self._rows = np.where(order < 0, address(self._zeros), address(self._raw) + self._order * row_bytes)

    @property
    def n_units(self) -> int:
        """Pairs of panels."""
        return len(self._data) // 2

    @property
    def is_moved(self) -> bool:
        """Whether the format's bit layout is known, so that jobs can move its bits."""
        return bool(self._parts)

    def jobs(self, first: int, stop: int) -> list[Job]:
        """The jobs that write units `first` to `stop` - 1."""
        jobs: list[Job] = []
        skip, panel_bytes = 0, self._data.shape[1]
        rows, out = address(self._rows) + 16 * PANEL_ROWS * first, address(self._data) + 2 * first * panel_bytes
        for count, recipe in self._parts:
            sizes = (count, recipe.source_bytes, recipe.record_bytes)
            jobs.append((rows, skip, 2 * (stop - first), out, panel_bytes, *sizes, *recipe.places))
            skip += count * recipe.source_bytes
            out += count * recipe.record_bytes
        return jobs

    def unpack(self, first: int, stop: int) -> None:
        """Write units `first` to `stop` - 1 without jobs."""
        panel, form = panel_for(self._form), self._form
        assert isinstance(panel, IntegerPanel)
        assert isinstance(form, BlockFormat)
        for start in range(2 * first, 2 * stop, UNPACKED_PANELS):
            end = min(2 * stop, start + UNPACKED_PANELS)
            chosen = self._order[start * PANEL_ROWS : end * PANEL_ROWS]
            raw = self._raw[np.maximum(chosen, 0)]
            raw[chosen < 0] = 0
            pack_codes(panel, form.unpack(raw), self._data[start:end])


BATCH_BYTES = 16 << 20
"""Bytes of the file that are read before their pages are given back."""
MOST_QUEUED = 2
"""Batches that may wait for the slowest worker, which keeps the pages of what others have read meanwhile."""

Batch = list[MatrixPacking]


class HeadLayout(Protocol):
    """Rows of a projection cut into heads of `width` rows, each padded to `padded`."""

    @property
    def count(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def padded(self) -> int: ...
    def places(self, n_rows: int) -> NDArray[np.int64]: ...


@dataclass(frozen=True, slots=True)
class PanelPiece:
    """Panels `first` to `first + n_panels - 1` of a matrix, which lie together at `address`.

    `bundle`: the one they belong to; None if they stay in one place as long as the model is open.
    """

    first: int
    n_panels: int
    address: int
    bundle: int | None = None


class PanelMatrix(Protocol):
    """A matrix in panels, an even number of them, in one or more pieces."""

    @property
    def panel(self) -> Panel: ...
    @property
    def n_panels(self) -> int: ...
    @property
    def panel_bytes(self) -> int: ...
    @property
    def pieces(self) -> tuple[PanelPiece, ...]: ...


class PanelWeights(Protocol):
    """Where a model's matrices are, packed for the instruction set `isa_name`."""

    @property
    def isa_name(self) -> str: ...
    @property
    def resident_bytes(self) -> int: ...
    @property
    def records(self) -> PlacedRecords | None:
        """Layers whose weights are records, not matrices; None if there are none."""
        ...

    def matrix(self, weight: Weight, heads: HeadLayout | None) -> PanelMatrix: ...


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """A matrix in panels: data uint8[n_panels, panel_bytes], n_panels even."""

    panel: Panel
    data: NDArray[np.uint8]

    @property
    def n_panels(self) -> int:
        return len(self.data)

    @property
    def panel_bytes(self) -> int:
        return int(self.data.shape[1])

    @property
    def pieces(self) -> tuple[PanelPiece, ...]:
        """The matrix as a single piece."""
        return (PanelPiece(0, len(self.data), address(self.data)),)


@dataclass(frozen=True, slots=True)
class Share:
    """A worker's part of a batch: PACKING_JOB[n] for compiled packing, and units of matrices packed without jobs."""

    batch: Batch  # owns what the jobs point to
    jobs: NDArray[np.void]
    unpacked: list[tuple[MatrixPacking, int, int]]


class PackedWeights:
    """The packed matrices of one model, for the instruction set `isa_name`."""

    def __init__(self, file: GGUFFile, isa_name: str, library: KernelLibrary) -> None:
        self.isa_name = isa_name
        self._file = file
        self._recipes = Recipes()
        self._pack_panels = library.function(PACK_PANELS)
        self._matrices: dict[Key, PackedMatrix] = {}

    @property
    def resident_bytes(self) -> int:
        """Bytes of all panels."""
        return sum(matrix.data.nbytes for matrix in self._matrices.values())

    @property
    def records(self) -> PlacedRecords | None:
        """Always None: all weights are matrices."""
        return None

    @property
    def file(self) -> GGUFFile:
        """The file that weights are packed from."""
        return self._file

    def __contains__(self, key: Key) -> bool:
        """Whether a matrix is packed."""
        return key in self._matrices

    def panel(self, weight: Weight) -> Panel:
        """How a weight is packed."""
        return panel_for(format_of(self._file.tensors[weight.tensor].ggml_type))

    def share(self, other: PackedWeights, wanted: Sequence[tuple[Weight, HeadLayout | None]]) -> None:
        """Use the wanted matrices that another model in the same file has already packed."""
        keys = ((weight, heads.padded if heads else 0) for weight, heads in wanted)
        self.take({key: other._matrices[key] for key in keys if key in other})

    def take(self, matrices: Mapping[Key, PackedMatrix]) -> None:
        """Add matrices that were packed elsewhere; `pack` skips them."""
        self._matrices.update(matrices)

    def pack(
        self,
        wanted: Sequence[tuple[Weight, HeadLayout | None]],
        n_workers: int,
        progress: Progress,
        cores: Sequence[int] = (),
    ) -> None:
        """Pack every wanted matrix with one thread per worker, pinned to its core if `cores` is given."""
        todo = {(weight, heads.padded if heads else 0): heads for weight, heads in wanted}
        todo = {key: heads for key, heads in todo.items() if key not in self._matrices}
        threads = [ThreadPoolExecutor(1, initializer=pin, initargs=(cores[i : i + 1],)) for i in range(n_workers)]
        try:
            done = 0
            for n_matrices in self._packed(todo, threads):
                self._file.release()
                for _ in range(n_matrices):
                    done += 1
                    progress("packing weights", done, len(todo))
        finally:
            for thread in threads:
                thread.shutdown(cancel_futures=True)

    def _packed(self, todo: dict[Key, HeadLayout | None], threads: Sequence[ThreadPoolExecutor]) -> Iterator[int]:
        """Pack batch by batch; the number of matrices of each, as soon as it is packed."""
        started: deque[tuple[int, list[Future[None]]]] = deque()
        for batch, shares in self._batches(todo, len(threads)):
            futures = [thread.submit(self._work, share) for thread, share in zip(threads, shares, strict=True)]
            started.append((len(batch), futures))
            while len(started) > MOST_QUEUED:
                yield self._ended(*started.popleft())
        while started:
            yield self._ended(*started.popleft())

    @staticmethod
    def _ended(n_matrices: int, futures: Sequence[Future[None]]) -> int:
        """Wait for a batch, and raise what its threads raised; its number of matrices."""
        for future in futures:
            future.result()
        return n_matrices

    def matrix(self, weight: Weight, heads: HeadLayout | None) -> PackedMatrix:
        """The packed form of a weight that was passed to `pack`."""
        return self._matrices[weight, heads.padded if heads else 0]

    def _batches(self, todo: dict[Key, HeadLayout | None], n_workers: int) -> Iterator[tuple[Batch, list[Share]]]:
        """Batches of matrices in file order, some megabytes each, with each worker's part."""
        keys = sorted(todo, key=lambda key: self._place(key[0]))
        orders = [row_order(key[0], todo[key]) for key in keys]
        panels = [self.panel(weight) for weight, _ in keys]
        shapes = [
            (len(order) // PANEL_ROWS, panel.panel_bytes(weight.columns))
            for (weight, _), order, panel in zip(keys, orders, panels, strict=True)
        ]
        batch: Batch = []
        for key, order, panel, data in zip(keys, orders, panels, room(shapes), strict=True):
            self._matrices[key] = PackedMatrix(panel, data)
            batch.append(MatrixPacking(self._file, key[0], order, data, self._recipes))
            if sum(matrix.source_bytes for matrix in batch) >= BATCH_BYTES:
                yield batch, shares_of(batch, n_workers)
                batch = []
        if batch:
            yield batch, shares_of(batch, n_workers)

    def _place(self, weight: Weight) -> tuple[int, int, int]:
        info = self._file.tensors[weight.tensor]
        return info.shard, info.offset, weight.start

    def _work(self, share: Share) -> None:
        self._pack_panels(address(share.jobs), len(share.jobs))
        for matrix, first, stop in share.unpacked:
            matrix.unpack(first, stop)


def room(shapes: list[tuple[int, int]]) -> list[NDArray[np.uint8]]:
    """Zeros of these shapes in whole cache lines, one after another: small matrices get huge pages too."""
    sizes = [n_panels * panel_bytes for n_panels, panel_bytes in shapes]
    memory, stops = aligned((sum(sizes),), np.uint8), list(itertools.accumulate(sizes))
    return [memory[stop - size : stop].reshape(shape) for stop, size, shape in zip(stops, sizes, shapes, strict=True)]


def shares_of(batch: Batch, n_workers: int) -> list[Share]:
    """The units that each worker packs: those it reads when all workers take equal parts of a product."""
    shares = []
    for start, stop in itertools.pairwise(WorkSplit.even(n_workers).cuts):
        jobs: list[Job] = []
        unpacked = []
        for matrix in batch:
            first, end = ((matrix.n_units * cut + WHOLE // 2) // WHOLE for cut in (start, stop))
            if matrix.is_moved:
                jobs += matrix.jobs(first, end)
            else:
                unpacked.append((matrix, first, end))
        shares.append(Share(batch, np.array(jobs, PACKING_JOB), unpacked))
    return shares


def row_order(weight: Weight, heads: HeadLayout | None) -> NDArray[np.int64]:
    """The row of the weight at each place, -1 for rows of zeros: int64[a multiple of UNIT_ROWS]."""
    order = np.arange(weight.n_rows)
    if heads is not None:
        spread = np.full(-(-weight.n_rows // heads.width) * heads.padded, -1)
        spread[heads.places(weight.n_rows)] = order
        order = spread
    return np.concatenate([order, np.full(-len(order) % UNIT_ROWS, -1)])
