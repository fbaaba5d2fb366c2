"""Packing a model's matrices into panels at load, each worker the panels it will read.

In: a GGUF file and weights. Out: PackedMatrix per weight (and head padding). A tied matrix is packed once. Pages of the
file are given back on the way, so that little of it is in memory beside the panels.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.base import WHOLE, Crew, Progress
from edgeinfer.backends.cpu.jit import KernelLibrary
from edgeinfer.backends.cpu.kernels.packing import SIGNATURE, pack_panels
from edgeinfer.backends.cpu.memory import aligned
from edgeinfer.backends.cpu.panels import PANEL_ROWS, UNIT_ROWS, Panel, panel_for
from edgeinfer.backends.cpu.pinning import pin
from edgeinfer.backends.cpu.recipes import Recipes
from edgeinfer.backends.cpu.repacking import MatrixPacking
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.quants import format_of
from edgeinfer.ops import Weight

RELEASE_BYTES = 32 << 20
"""So much of the file is read before its pages are given back."""


class HeadLayout(Protocol):
    """Rows of a projection cut into heads of `width` rows, each padded to `padded`."""

    @property
    def count(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def padded(self) -> int: ...


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """A matrix in panels: data uint8[n_panels, panel_bytes], n_panels even."""

    panel: Panel
    data: NDArray[np.uint8]


class PackedWeights:
    """The packed matrices of one model, for the instruction set `isa_name`."""

    def __init__(self, file: GGUFFile, isa_name: str, library: KernelLibrary) -> None:
        self.isa_name = isa_name
        self._file = file
        self._recipes = Recipes()
        self._pack_panels = library.function(SIGNATURE, pack_panels)
        self._matrices: dict[tuple[Weight, int], PackedMatrix] = {}

    @property
    def resident_bytes(self) -> int:
        """Bytes of all panels."""
        return sum(matrix.data.nbytes for matrix in self._matrices.values())

    def pack(
        self,
        wanted: list[tuple[Weight, HeadLayout | None]],
        n_workers: int,
        progress: Progress,
        cores: Sequence[int] = (),
    ) -> None:
        """Pack every wanted matrix, a thread for each worker, which stays on its core if `cores` says which."""
        todo = {(weight, heads.padded if heads else 0): heads for weight, heads in wanted}
        in_file_order = sorted(todo, key=lambda key: self._place(key[0]))
        threads = [ThreadPoolExecutor(1, initializer=pin, initargs=(cores[i : i + 1],)) for i in range(n_workers)]
        try:
            packing = [self._start(key, todo[key], threads) for key in in_file_order]
            read_bytes = 0
            for done, (n_bytes, shares) in enumerate(packing):
                for share in shares:
                    share.result()
                read_bytes += n_bytes
                if read_bytes >= RELEASE_BYTES:
                    self._file.release()
                    read_bytes = 0
                progress("packing weights", done + 1, len(packing))
        finally:
            for thread in threads:
                thread.shutdown(cancel_futures=True)

    def matrix(self, weight: Weight, heads: HeadLayout | None) -> PackedMatrix:
        """The packed form of a weight that `pack` was asked for."""
        return self._matrices[weight, heads.padded if heads else 0]

    def _place(self, weight: Weight) -> tuple[int, int, int]:
        info = self._file.tensors[weight.tensor]
        return info.shard, info.offset, weight.start

    def _start(
        self, key: tuple[Weight, int], heads: HeadLayout | None, threads: list[ThreadPoolExecutor]
    ) -> tuple[int, list[Future[None]]]:
        """Let each worker pack its share of a matrix; bytes that will be read of the file, and what to wait for."""
        weight, order = key[0], row_order(key[0], heads)
        panel = panel_for(format_of(self._file.tensors[weight.tensor].ggml_type))
        data = aligned((len(order) // PANEL_ROWS, panel.panel_bytes(weight.columns)), np.uint8)
        self._matrices[key] = PackedMatrix(panel, data)
        matrix = MatrixPacking(self._file, weight, order, data, self._recipes, self._pack_panels)
        starts = [2 * ((len(data) // 2 * cut + WHOLE // 2) // WHOLE) for cut in Crew.even(len(threads)).cuts]
        shares = zip(threads, starts, starts[1:], strict=False)
        return matrix.source_bytes, [thread.submit(matrix.pack, start, stop) for thread, start, stop in shares]


def row_order(weight: Weight, heads: HeadLayout | None) -> NDArray[np.int64]:
    """Which row of the weight goes where, -1 for rows of zeros: int64[a multiple of UNIT_ROWS]."""
    order = np.arange(weight.n_rows)
    if heads is not None:
        spread = np.full((heads.count, heads.padded), -1)
        spread[:, : heads.width] = order.reshape(heads.count, heads.width)
        order = spread.ravel()
    return np.concatenate([order, np.full(-len(order) % UNIT_ROWS, -1)])
