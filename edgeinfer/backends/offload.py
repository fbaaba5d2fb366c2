"""What a device provides to run models whose weights do not all stay in memory: bundle sizes and the bundle file.

In: a model. Out: one `WeightOffload` record per kind of device, which plans use to count and pack files. Independent of
what bundles contain and of what stays in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from edgeinfer.backends.base import Limits
    from edgeinfer.graph.graph import ModelSpec
    from edgeinfer.graph.step import Int32s
    from edgeinfer.models.gguf import TensorInfo
    from edgeinfer.models.load import Model
    from edgeinfer.steps import Progress


class BundleSize(Protocol):
    """A part of a model's weights that is read at once."""

    @property
    def number(self) -> int: ...
    @property
    def stage(self) -> str: ...
    @property
    def padded_bytes(self) -> int: ...
    @property
    def is_dense(self) -> bool:
        """Whether every pass needs it."""
        ...

    @property
    def stays(self) -> bool:
        """Whether it must be in memory all the time."""
        ...

    @property
    def expert(self) -> int | None:
        """The number of the expert it is; None for other bundles."""
        ...


@dataclass(frozen=True, slots=True)
class RecordSizes:
    """Bytes and counts of records.

    The fields: bytes of the records, of the fewest that must have room, of the largest run, of a read; and how many
    there are. Runs are read at first, reads come later.
    """

    nbytes: int
    least_bytes: int
    run_bytes: int
    read_bytes: int
    count: int
    n_layers: int


@dataclass(frozen=True, slots=True)
class BundleSizes:
    """The bundles of a model, their total bytes with padding, and its records, if it has any."""

    bundles: Sequence[BundleSize]
    data_bytes: int
    records: RecordSizes | None = None

    @property
    def experts(self) -> list[BundleSize]:
        """The bundles of experts."""
        return [bundle for bundle in self.bundles if bundle.expert is not None]


@dataclass(frozen=True, slots=True)
class Bundled:
    """A complete bundle file and how it came about: bytes left by an earlier, stopped pack, and bundles remade."""

    path: Path
    nbytes: int
    state: Literal["packed", "present", "repaired"]
    kept_bytes: int = 0
    n_repaired: int = 0


class BundleDamage(Protocol):
    """A bundle that cannot be used, and why."""

    @property
    def bundle(self) -> BundleSize: ...
    @property
    def reason(self) -> str: ...


class BundlePacking(Protocol):
    """One model's bundle file: created, checked, repaired."""

    @property
    def path(self) -> Path: ...
    @property
    def data_bytes(self) -> int:
        """Bytes of all bundles of the model."""
        ...

    def check(self) -> None:
        """Raises BadBundle if the file is missing or belongs to another model."""
        ...

    def pack(self, progress: Progress) -> Bundled:
        """Ensure the file exists: use the existing one, wait for the process that is packing it, or pack a new one.

        Raises BadBundle if the existing file belongs to another model, PackFailed.
        """
        ...

    def pack_anew(self, progress: Progress) -> Bundled:
        """Pack a new file, replacing any existing one. Raises PackFailed."""
        ...

    def pack_with(self, table: NDArray[np.uint8], progress: Progress) -> Bundled:
        """The same, with this table of records. Raises PackFailed, also if the path is something else."""
        ...

    def damage(self, progress: Progress) -> Sequence[BundleDamage]:
        """Read the whole file and list its damaged bundles. Raises BadBundle if it cannot be used at all."""
        ...

    def repair(self, progress: Progress) -> Bundled:
        """Restore a complete file: remake damaged bundles, or all of them if the file belongs to another model.

        Raises PackFailed, also for a file that is not a bundle file.
        """
        ...


@dataclass(frozen=True, slots=True)
class RecordOffload:
    """How a device stores layers as records, of which a pass reads those that it uses.

    has    whether a model has such layers
    table  the table of a bundle file with the records of each layer in an order: of the record at each position
    watch  which records a model with these limits uses for which tokens: bool[T, n_records] per layer
    """

    has: Callable[[ModelSpec, Mapping[str, TensorInfo]], bool]
    table: Callable[[Sequence[Int32s]], NDArray[np.uint8]]
    watch: Callable[[Model, Limits, Int32s, Progress], list[NDArray[np.bool_]]]


@dataclass(frozen=True, slots=True)
class WeightOffload:
    """How a kind of device runs models whose weights do not all stay in memory.

    sizes           bundles of a model, from its header alone; True: layers that can be stored as records are
    packing         the bundle file of a model at a path, packed by this many workers; layers as records or whole
    is_bundle_file  whether a file is a bundle file, including those of other models or versions
    records         how layers are stored as records; None if they never are
    """

    sizes: Callable[[ModelSpec, Mapping[str, TensorInfo], bool], BundleSizes]
    packing: Callable[[Model, Path, int, bool], BundlePacking]
    is_bundle_file: Callable[[Path], bool]
    records: RecordOffload | None = None
