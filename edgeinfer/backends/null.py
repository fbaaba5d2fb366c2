"""The null device: computes nothing, but counts what a real device would read and compute. Accepts models of any size.

In: a ModelSpec and steps. Out: zero logits, and each lane's accumulated `work`. Does not read weights.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.base import DeviceKind, DeviceOptions, Footprint, Limits
from edgeinfer.backends.capabilities import DeviceCapabilities, LaneCapabilities
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.step import Floats, Int32s, Step
from edgeinfer.models.gguf import GGUFFile, TensorInfo
from edgeinfer.models.work import PassWork, pass_work
from edgeinfer.steps import Progress, no_progress


class NullDevice:
    """A device that counts instead of computing."""

    name = "null"
    batch_invariant = True
    capabilities = DeviceCapabilities()

    def compile(self, spec: ModelSpec, file: GGUFFile, limits: Limits, progress: Progress = no_progress) -> NullLane:
        """A lane that stores nothing."""
        return NullLane(spec, file)

    def close(self) -> None:
        """Nothing to release."""


class NullLane:
    """`work` accumulates over all steps run."""

    capabilities = LaneCapabilities()

    def __init__(self, spec: ModelSpec, file: GGUFFile) -> None:
        self._spec = spec
        self._tensors = file.tensors
        self.work = PassWork()

    @property
    def resident_bytes(self) -> int:
        return 0

    def run(self, step: Step) -> Floats:
        """Count the step; return zeros float32[O, V]. Several sequences count as one with the longest cache."""
        n_outputs = len(step.batch.outputs)
        n_cached = int(step.starts.max(initial=0))
        self.work += pass_work(self._spec, self._tensors, len(step.batch.tokens), n_cached, n_outputs)
        return np.zeros((n_outputs, self._spec.output_width), np.float32)

    def copy_slots(self, sources: Int32s, targets: Int32s) -> None:
        """There is nothing to copy."""

    def read_pages(self, pages: Int32s) -> NDArray[np.uint8]:
        """Empty pages."""
        return np.zeros((len(pages), 0), np.uint8)

    def write_pages(self, pages: Int32s, contents: NDArray[np.uint8]) -> None:
        """There is nothing to write."""

    def close(self) -> None:
        """Nothing to release."""


def footprint(spec: ModelSpec, tensors: Mapping[str, TensorInfo], limits: Limits) -> Footprint:
    """Nothing is held."""
    return Footprint(0, 0, 0, 0)


def _open(options: DeviceOptions) -> NullDevice:
    return NullDevice()


DEVICE = DeviceKind("null", "computes nothing and counts bytes and operations", _open, footprint)
