"""What a device offers that runs models whose weights do not all stay in memory: sizes of bundles, and their file.

In: a model. Out: one record for a kind of device, `WeightOffload`, from which plans count and files are packed. Knows
nothing of what bundles hold, nor of who decides what stays in memory.
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
        """The number of the expert that it is; None for anything else."""
        ...


@dataclass(frozen=True, slots=True)
class NeuronSizes:
    """Bytes of single neurons, of the fewest there must be room for, of the largest run, of a read; and how many.

    Runs are what is read at first, reads what is read later.
    """

    nbytes: int
    least_bytes: int
    run_bytes: int
    read_bytes: int
    count: int
    n_layers: int


@dataclass(frozen=True, slots=True)
class BundleSizes:
    """The bundles of a model, bytes of all of them with their padding, and its single neurons, if it has any."""

    bundles: Sequence[BundleSize]
    data_bytes: int
    neurons: NeuronSizes | None = None

    @property
    def experts(self) -> list[BundleSize]:
        """The bundles of experts."""
        return [bundle for bundle in self.bundles if bundle.expert is not None]


@dataclass(frozen=True, slots=True)
class Bundled:
    """A whole bundle file and what was done for it: bytes that an earlier, stopped pack left, bundles made again."""

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
    """One model's bundle file: made, checked, repaired."""

    @property
    def path(self) -> Path: ...
    @property
    def data_bytes(self) -> int:
        """Bytes of all bundles of the model."""
        ...

    def check(self) -> None:
        """Raise BadBundle where the file is not there or not this model's."""
        ...

    def pack(self, progress: Progress) -> Bundled:
        """Have a file: the one that is there, the one that another process is packing, or a new one.

        Raises BadBundle for a file that is there and not this model's, PackFailed.
        """
        ...

    def pack_anew(self, progress: Progress) -> Bundled:
        """Have a new file, in place of what is there. Raises PackFailed."""
        ...

    def pack_in_order(self, orders: tuple[Int32s, ...], progress: Progress) -> Bundled:
        """The same with the neurons of each layer in this order. Raises PackFailed, also for what is something else."""
        ...

    def damage(self, progress: Progress) -> Sequence[BundleDamage]:
        """Read the whole file and list what is damaged. Raises BadBundle where it cannot be used at all."""
        ...

    def repair(self, progress: Progress) -> Bundled:
        """Have a whole file: damaged bundles are made again, and all of them where the file is not this model's.

        Raises PackFailed, also for a file that is something else.
        """
        ...


@dataclass(frozen=True, slots=True)
class WeightOffload:
    """How a kind of device runs models whose weights do not all stay in memory.

    sizes           bundles of a model, from its header alone; True: layers that may be read by neurons are
    has_neurons     whether layers of a model may be read by neurons
    packing         the bundle file of a model at a path, made by so many workers; layers by neurons or whole
    is_bundle_file  whether a file is one, be it of another model or version
    watch_firing    which neurons fire for which tokens: bool[T, n_neurons] of each layer of a model with these limits
    """

    sizes: Callable[[ModelSpec, Mapping[str, TensorInfo], bool], BundleSizes]
    has_neurons: Callable[[ModelSpec, Mapping[str, TensorInfo]], bool]
    packing: Callable[[Model, Path, int, bool], BundlePacking]
    is_bundle_file: Callable[[Path], bool]
    watch_firing: Callable[[Model, Limits, Int32s, Progress], list[NDArray[np.bool_]]]
