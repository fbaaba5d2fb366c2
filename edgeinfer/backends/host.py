"""The seam of a device beside which others run parts of a model: it runs sections, and holds all buffers.

In and out: nothing; these are the protocols. Knows neither the other devices nor what decides who runs what.
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
    """A model of which one device runs sections, and holds all buffers, while others run the rest."""

    def use(self, most_workers: int) -> None:
        """Use no more workers from the next step on."""
        ...

    def begin(self, step: Step) -> None:
        """Take over a step."""
        ...

    def run_section(self, number: int) -> None:
        """Run a section of the step to its end."""
        ...

    def read(self, name: str) -> Floats:
        """Rows of a buffer as they are now: float32[T or O, width], perhaps a view."""
        ...

    def write(self, name: str, first: int, values: Floats, *, adds: bool = False) -> None:
        """Put float32[T or O, n] into the columns from `first` on, or add it to what is there."""
        ...


class HostDevice(Device, Protocol):
    """A device beside which others run parts of a model."""

    def compile_sections(
        self,
        spec: ModelSpec,
        exposed: Sequence[frozenset[str]],
        file: GGUFFile,
        limits: Limits,
        progress: Progress = no_progress,
    ) -> HostLane:
        """A model in sections, the stages of `spec`, after which others read the buffers `exposed`."""
        ...
