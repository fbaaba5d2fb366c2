"""The interface of a host device: it runs sections of a model, and holds all buffers, while other devices run the rest.

In and out: nothing; these are protocols. Independent of the other devices and of how the parts are assigned.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from edgeinfer.backends.base import Device, Limits
from edgeinfer.backends.memories import KVMemory
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.step import Floats, Step
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.steps import Progress, no_progress


class HostLane(KVMemory, Protocol):
    """A model of which one device runs sections and holds all buffers, while others run the rest."""

    def use(self, most_workers: int) -> None:
        """Use at most this many workers from the next step on."""
        ...

    def begin(self, step: Step) -> None:
        """Begin a step."""
        ...

    def run_section(self, number: int) -> None:
        """Run one section of the step to completion."""
        ...

    def read(self, name: str) -> Floats:
        """A buffer's current rows: float32[T or O, width], possibly a view."""
        ...

    def write(self, name: str, first: int, values: Floats, *, adds: bool = False) -> None:
        """Write float32[T or O, n] to the columns from `first` on, or add it to them."""
        ...


class HostDevice(Device, Protocol):
    """A device that can host a model parts of which run on other devices."""

    def compile_sections(
        self,
        spec: ModelSpec,
        exposed: Sequence[frozenset[str]],
        file: GGUFFile,
        limits: Limits,
        progress: Progress = no_progress,
    ) -> HostLane:
        """Compile a model in sections (the stages of `spec`); after each, other devices read the buffers `exposed`."""
        ...
