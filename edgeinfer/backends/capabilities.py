"""What a lane or a device has besides what each must have: one frozen record for either, None for what it lacks.

In and out: these records and the protocols of their fields. Whoever wants more than `Lane` or `Device` says reads it
here, so that a type checker sees what is asked for; what is not in the record is not there. `base` has the rest.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from edgeinfer.backends.base import (
    FragmentDevice,
    Joined,
    OpSeconds,
    PartsDevice,
    Peaked,
    Timing,
    WorkSplit,
)
from edgeinfer.backends.host import HostDevice
from edgeinfer.backends.memories import StateMemory, WindowMemory
from edgeinfer.graph.step import Floats, Step
from edgeinfer.offload.weights import Streaming, ThresholdLane


class Workers(Protocol):
    """Workers over which the steps of a lane are shared out."""

    work_split: WorkSplit
    """The work split of the steps to come."""

    @property
    def n_workers(self) -> int: ...

    @property
    def seconds(self) -> float:
        """What the last step took."""
        ...

    @property
    def timing(self) -> Timing: ...

    @property
    def affinity(self) -> tuple[tuple[int, ...], ...]:
        """The cores that the system lets each worker run on, read back from it; () where it does not say."""
        ...


@dataclass(frozen=True, slots=True)
class KernelTime:
    """Calls of one kernel for one kind of op: seconds of a step, means over the workers.

    `busy_s` in the calls; `waiting_s` at the barriers behind them, for slower workers. All of a step's add up to it.
    """

    op: str
    kernel: str
    busy_s: float
    waiting_s: float
    calls: int


@dataclass(frozen=True, slots=True)
class Overhead:
    """Seconds that a launch from Python, a call and a barrier take when there is nothing to compute."""

    launch_s: float
    call_s: float
    barrier_s: float


class OpTimes(Protocol):
    """What the time of a lane's steps goes to, for measurements."""

    def time_ops(self, step: Step, stages: Collection[str] | None = None) -> list[OpSeconds]:
        """Evaluate a step, or these stages of it over whatever the buffers hold, and time its ops, in order."""
        ...

    def profile(self, step: Step) -> Sequence[KernelTime]:
        """Evaluate a step and sum up its calls by kind of op and kernel."""
        ...

    def overhead(self) -> Overhead:
        """What is spent where nothing is computed."""
        ...


class Buffers(Protocol):
    """The buffers of a lane, to be looked at: for embeddings, tests and debugging."""

    def value(self, name: str) -> Floats:
        """A copy of a buffer's rows after the last run: float32[T or O, width]."""
        ...


@dataclass(frozen=True, slots=True)
class LaneCapabilities:
    """What a lane has besides running steps.

    states     what holds the states of sequences, for a model that has any
    windows    what holds layers that keep only a window (`Limits.windows`)
    workers    over which steps are shared out
    op_times   what the time of a step goes to
    peaks      where the highest logits are
    buffers    what they hold after a step
    cutting    activations that may be cut at a threshold
    streaming  weights that come from a file in part
    """

    states: StateMemory | None = None
    windows: WindowMemory | None = None
    workers: Workers | None = None
    op_times: OpTimes | None = None
    peaks: Peaked | None = None
    buffers: Buffers | None = None
    cutting: ThresholdLane | None = None
    streaming: Streaming | None = None


class OwnMemory(Protocol):
    """Memory that a device has for itself."""

    @property
    def memory_bytes(self) -> int | None:
        """Bytes of it that may be used now; None where they are not known."""
        ...


@dataclass(frozen=True, slots=True)
class DeviceCapabilities:
    """What a device has besides compiling whole models.

    fragments  compiles a part of a model, to run beside other devices
    parts      shares its memory out among all parts of a model that it runs, which it does one at a time
    sections   compiles a model of which others run parts, as the host that holds all buffers
    joined     how far its lanes let passes without wanted logits wait, to run them with those after them
    memory     memory of its own, where it does not use the machine's
    """

    fragments: FragmentDevice | None = None
    parts: PartsDevice | None = None
    sections: HostDevice | None = None
    joined: Joined | None = None
    memory: OwnMemory | None = None
