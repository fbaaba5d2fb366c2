"""Optional abilities of a lane or a device: one frozen record for each, with None for what is missing.

In and out: these records and the protocols of their fields. Code that needs more than `Lane` or `Device` declares reads
it here, so a type checker sees what is used. One ability has a lane of its own: a host device runs sections of a model
and holds all buffers, while other devices run the rest. Required abilities are in `base`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from edgeinfer.backends.base import (
    Device,
    FragmentDevice,
    Joined,
    Lane,
    Limits,
    OpSeconds,
    PartsDevice,
    Peaked,
    Timing,
    WorkSplit,
)
from edgeinfer.backends.memories import KeyTurner, KVMemory, StateMemory, WindowMemory
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.step import Floats, Step
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.offload.weights import Streaming, ThresholdLane
from edgeinfer.steps import Progress, no_progress


class Workers(Protocol):
    """The workers that share the steps of a lane."""

    work_split: WorkSplit
    """The work split of the steps that follow."""

    @property
    def n_workers(self) -> int: ...

    @property
    def seconds(self) -> float:
        """Timing of the last step."""
        ...

    @property
    def timing(self) -> Timing: ...

    @property
    def affinity(self) -> tuple[tuple[int, ...], ...]:
        """The cores each worker may run on, as reported by the system; () if it does not report them."""
        ...


@dataclass(frozen=True, slots=True)
class KernelTime:
    """Calls of one kernel for one kind of op: seconds per step, averaged over the workers.

    `busy_s` is spent in the calls, `waiting_s` at the barriers after them, waiting for slower workers. Summed over all
    calls, they give the step's time. `bytes_read`: weights, keys and values that all workers together read.
    """

    op: str
    kernel: str
    busy_s: float
    waiting_s: float
    calls: int
    bytes_read: int = 0


@dataclass(frozen=True, slots=True)
class Overhead:
    """Seconds that a launch from Python, a call and a barrier take with nothing to compute."""

    launch_s: float
    call_s: float
    barrier_s: float


class OpTimes(Protocol):
    """How a lane's steps spend their time, for measurements."""

    def time_ops(self, step: Step, stages: Collection[str] | None = None) -> list[OpSeconds]:
        """Evaluate a step, or only these stages on the current buffers; return its ops with their times, in order."""
        ...

    def profile(self, step: Step) -> Sequence[KernelTime]:
        """Evaluate a step and sum its calls by kind of op and kernel."""
        ...

    def overhead(self) -> Overhead:
        """The time spent without computing anything."""
        ...


class Buffers(Protocol):
    """Read access to a lane's buffers, for embeddings, tests and debugging."""

    def value(self, name: str) -> Floats:
        """A copy of a buffer's rows after the last run: float32[T or O, width]."""
        ...


class Scratch(Protocol):
    """Memory whose contents matter within a pass alone (`ModelSpec.scratch`)."""

    def give_back(self) -> None:
        """Give the memory back to the system until the next pass; the result of the last one is lost."""
        ...


@dataclass(frozen=True, slots=True)
class LaneCapabilities:
    """What a lane can do besides running steps.

    states     the memory of sequence states, for models that have them
    windows    the memory of layers with a window (`Limits.windows`)
    workers    the workers that share its steps
    op_times   where the time of a step is spent
    peaks      where the highest logits are
    buffers    buffer contents after a step
    cutting    activations that can be cut at a threshold
    streaming  weights partly read from a file
    scales     whether passes may state scales of LoRA adapters
    budgets    whether passes may state budgets of attention
    turning    moves cached tokens to other positions
    scratch    memory that can be given back between passes
    """

    states: StateMemory | None = None
    windows: WindowMemory | None = None
    workers: Workers | None = None
    op_times: OpTimes | None = None
    peaks: Peaked | None = None
    buffers: Buffers | None = None
    cutting: ThresholdLane | None = None
    streaming: Streaming | None = None
    scales: bool = False
    budgets: bool = False
    turning: KeyTurner | None = None
    scratch: Scratch | None = None


class OwnMemory(Protocol):
    """A device's own memory."""

    @property
    def memory_bytes(self) -> int | None:
        """Bytes of it that can be used now; None if unknown."""
        ...


@dataclass(frozen=True, slots=True)
class DeviceCapabilities:
    """What a device can do besides compiling whole models.

    fragments  compile part of a model, to run alongside other devices
    parts      divide its memory among all the parts of a model it runs, one part at a time
    sections   compile a model, parts of which run on other devices, as the host that holds all buffers
    joined     up to what size its lanes join passes without requested logits with later ones
    memory     memory of its own, if it does not use the machine's
    reading    compile models that attend to the keys and values of another one
    """

    fragments: FragmentDevice | None = None
    parts: PartsDevice | None = None
    sections: HostDevice | None = None
    joined: Joined | None = None
    memory: OwnMemory | None = None
    reading: ReadingDevice | None = None


class ReadingDevice(Device, Protocol):
    """A device that also runs models without KV memory of their own, which attend to another one's."""

    def compile_reader(self, spec: ModelSpec, file: GGUFFile, limits: Limits, progress: Progress = no_progress) -> Lane:
        """Compile a model that reads the KV memory of the last one compiled by `compile`, which must be open."""
        ...


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
