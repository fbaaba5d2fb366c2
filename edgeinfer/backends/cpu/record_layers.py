"""Layers whose weights are stored as records of their own instead of matrices: the seam for folders that add some.

In: the ops of a model, a tensor table. Out: its `RecordLayers`, found by the folder that adds them; None without that
folder, and for models that have no such layers: all their weights are then matrices. A pass reads the records that it
uses. What a record holds, which ones a pass uses and how they are computed is known to the folder alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from edgeinfer import registry
from edgeinfer.backends.base import DeviceOptions
from edgeinfer.backends.offload import RecordOffload, RecordSizes
from edgeinfer.graph.op import Op
from edgeinfer.jit.code import CompiledFunction, Kernel
from edgeinfer.jit.library import KernelLibrary
from edgeinfer.models.gguf import GGUFFile, TensorInfo
from edgeinfer.offload.bundle import Bundle, Run
from edgeinfer.offload.weights import OffloadedWeights, RecordUse, WeightReads

if TYPE_CHECKING:
    from edgeinfer.backends.cpu.device import CpuDevice
    from edgeinfer.backends.cpu.lanes.streamed_weights import Bundles
    from edgeinfer.backends.cpu.lowering.model import CpuLowering
    from edgeinfer.backends.cpu.workers.tape import Call

FOLDER, ENTRY = "edgeinfer.backends.cpu.neurons", "storage"
"""The folder that adds such layers, and its module with a constant STORAGE: a `RecordStorage`."""


class RecordLayer(Protocol):
    """Consecutive ops of a model.

    place          of the first op, whose weights are a matrix
    stored_places  of the products whose weights are records; at the last one, records are read
    shared_bytes   what all records share, which stays in memory
    line           what the records are made from, for the identity of a file
    """

    @property
    def place(self) -> int: ...
    @property
    def stored_places(self) -> tuple[int, ...]: ...
    @property
    def n_records(self) -> int: ...
    @property
    def record_bytes(self) -> int: ...
    @property
    def shared_bytes(self) -> int: ...
    @property
    def line(self) -> str: ...


class RecordMaker(Protocol):
    """Makes the bytes of bundles of records from a model's file; several threads may call it."""

    def run(self, run: Run) -> NDArray[np.uint8]:
        """The bytes of a run of records, or of what all records of the layer share."""
        ...


class RecordLowering(Protocol):
    """Makes the calls of all such layers of one model."""

    @property
    def resident_bytes(self) -> int: ...

    def has(self, place: int) -> bool:
        """Whether the op at a place belongs to such a layer."""
        ...

    def calls(self, place: int) -> list[Call]:
        """The calls of such an op."""
        ...

    def feed(self, calls: Sequence[Call]) -> object | None:
        """What `RecordWindow.rounds` takes before these calls of an op run; None if they need no records."""
        ...


class RecordWindow(Protocol):
    """The records in memory, and the reading of others."""

    @property
    def reading(self) -> WeightReads: ...
    @property
    def use(self) -> RecordUse: ...

    def rounds(self, feed: object, lowering: RecordLowering) -> Iterator[None]:
        """Have the records that some calls need in memory, as many at a time as fit; the calls run once a round."""
        ...

    def shrink(self, n_bytes: int) -> int:
        """Give back up to `n_bytes` of memory for good, between two steps; returns the bytes."""
        ...

    def close(self) -> None: ...


class RecordLayers(Protocol):
    """All such layers of one model.

    table_bytes  of a table about all records, which follows the data of a bundle file
    table_name   of that table, for messages
    """

    @property
    def layers(self) -> Sequence[RecordLayer]: ...
    @property
    def table_bytes(self) -> int: ...
    @property
    def table_name(self) -> str: ...

    def new_table(self) -> NDArray[np.uint8]:
        """The table of a file for which none was given: uint8[table_bytes]."""
        ...

    def check_table(self, path: Path, table: NDArray[np.uint8]) -> None:
        """Raise BadBundle for an invalid table of the file at `path`."""
        ...

    def maker(self, file: GGUFFile, table: NDArray[np.uint8]) -> RecordMaker: ...

    def sizes(self, bundles: Sequence[Bundle]) -> RecordSizes:
        """Sizes for plans."""
        ...

    def kernels(self, isa_name: str) -> list[Kernel | CompiledFunction]:
        """What the calls and the reading of these layers need."""
        ...

    def lower(self, shared: Mapping[int, int], isa_name: str, lowering: CpuLowering) -> RecordLowering:
        """`shared`: address of what all records of a layer share, by layer number, of each layer that has some."""
        ...

    def open(self, source: Bundles, stored: OffloadedWeights, library: KernelLibrary) -> RecordWindow: ...


@dataclass(frozen=True, slots=True)
class PlacedRecords:
    """The layers of a model that is compiled; `shared` as in `RecordLayers.lower`."""

    layers: RecordLayers
    shared: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class RecordStorage:
    """What the folder provides: the layers of a model, None if it has none; and what plans and commands call."""

    find: Callable[[Sequence[Op], Mapping[str, TensorInfo]], RecordLayers | None]
    offload: Callable[[Callable[[DeviceOptions], CpuDevice]], RecordOffload]


def record_storage() -> RecordStorage | None:
    """What the folder provides; None without it."""
    found: RecordStorage | None = registry.optional(FOLDER, ENTRY, "STORAGE")
    return found


def record_layers(ops: Sequence[Op], tensors: Mapping[str, TensorInfo]) -> RecordLayers | None:
    """The layers of a model that are stored as records. Raises UnsupportedModel for an unknown format."""
    storage = record_storage()
    return None if storage is None else storage.find(ops, tensors)
