"""A machine whose times are known: devices that compute nothing and let a clock go on by what they should take.

In: rates. Out: devices that compile any model or part of it to lanes on that clock, whose times follow `DeviceCost`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.base import Joined, Limits
from edgeinfer.backends.capabilities import DeviceCapabilities, LaneCapabilities
from edgeinfer.graph.graph import Fragment, ModelSpec
from edgeinfer.graph.step import PAGE, Floats, Int32s, Step
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.scheduling.cost.seconds import DeviceCost, Pass
from edgeinfer.scheduling.cost.work import ModelWork, work_of
from edgeinfer.scheduling.machine.profile import DeviceRates
from edgeinfer.steps import Progress, no_progress


class Clock:
    """Seconds that go on when they are told to; stands in for the module `time`."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


class NoPages:
    """KV memory that keeps nothing and takes no time."""

    __slots__ = ()
    capabilities = LaneCapabilities()

    def copy_slots(self, sources: Int32s, targets: Int32s) -> None: ...

    def read_pages(self, pages: Int32s) -> NDArray[np.uint8]:
        return np.zeros((len(pages), PAGE), np.uint8)

    def write_pages(self, pages: Int32s, contents: NDArray[np.uint8]) -> None: ...

    def close(self) -> None: ...


@dataclass(slots=True)
class Lane(NoPages):
    """A whole model, which takes what its device's rates say; passes without outputs wait if the device joins them."""

    clock: Clock
    cost: DeviceCost
    work: ModelWork
    n_vocab: int
    most_joined: int
    n_waiting: int = 0
    resident_bytes: int = 0

    def run(self, step: Step) -> Floats:
        n_tokens, n_outputs = len(step.batch.tokens), len(step.batch.outputs)
        self.n_waiting += n_tokens
        if n_outputs or self.n_waiting + n_tokens > self.most_joined:
            n_cached = int(step.batch.positions[-1]) + 1 - self.n_waiting
            self.clock.now += self.cost.model(self.work, Pass(self.n_waiting, n_cached, n_outputs)).total
            self.n_waiting = 0
        return np.zeros((n_outputs, self.n_vocab), np.float32)


class KnownDevice:
    """A device with rates that are to be found out."""

    name = "known"
    batch_invariant = False

    def __init__(self, clock: Clock, rates: DeviceRates) -> None:
        self.clock, self.rates = clock, rates
        self.joined = Joined(1024, 1.5e11)
        self.capabilities = DeviceCapabilities(joined=self.joined)

    def compile(self, spec: ModelSpec, file: GGUFFile, limits: Limits, progress: Progress = no_progress) -> Lane:
        work = work_of(spec, file.tensors)
        most = min(self.joined.most_tokens, int(self.joined.most_products / work.n_weights))
        return Lane(self.clock, DeviceCost(self.rates, work.weight_bytes), work, spec.n_vocab, most)

    def close(self) -> None: ...


@dataclass(slots=True)
class HostLane(NoPages):
    """Sections that take so many seconds each, and buffers of zeros; reading and writing takes its time by bytes."""

    clock: Clock
    section_s: float
    widths: Mapping[str, int]
    byte_s: float
    n_rows: int = 0
    resident_bytes: int = 0

    def use(self, most_workers: int) -> None: ...

    def begin(self, step: Step) -> None:
        self.n_rows = len(step.batch.tokens)

    def run_section(self, number: int) -> None:
        self.clock.now += self.section_s

    def read(self, name: str) -> Floats:
        n_rows = 1 if name.endswith("out") or name == "logits" else self.n_rows
        values = np.zeros((n_rows, self.widths[name]), np.float32)
        self.clock.now += self.byte_s * values.nbytes if name != "logits" else 0.0
        return values

    def write(self, name: str, first: int, values: Floats, *, adds: bool = False) -> None:
        self.clock.now += self.byte_s * values.nbytes


@dataclass(slots=True)
class AwayLane(NoPages):
    """A part of a model: submitting keeps the caller busy, results are there some time later."""

    clock: Clock
    fragment: Fragment
    busy_s: float
    away_s: float
    n_rows: tuple[int, int] = (0, 0)
    ran: tuple[float, float] = (0.0, 0.0)
    resident_bytes: int = 0

    def submit(self, step: Step, inputs: Mapping[str, Floats]) -> None:
        self.n_rows = len(step.batch.tokens), len(step.batch.outputs)
        self.clock.now += self.busy_s
        self.ran = self.clock.now, self.clock.now + self.away_s

    def wait(self) -> Mapping[str, Floats]:
        self.clock.now = max(self.clock.now, self.ran[1])
        buffers = {buffer.name: buffer for buffer in self.fragment.spec.buffers}
        return {
            name: np.zeros((self.n_rows[buffers[name].rows.value == "outputs"], buffers[name].width), np.float32)
            for name in self.fragment.outputs
        }


@dataclass(slots=True)
class KnownHost:
    """A host whose sections take `section_s`, and `byte_s` for each byte read or written."""

    clock: Clock
    section_s: float
    byte_s: float
    name: str = "cpu"
    batch_invariant: bool = True

    @property
    def capabilities(self) -> DeviceCapabilities:
        return DeviceCapabilities(sections=self)

    def compile(self, spec: ModelSpec, file: GGUFFile, limits: Limits, progress: Progress = no_progress) -> Lane:
        raise NotImplementedError

    def compile_sections(
        self,
        spec: ModelSpec,
        exposed: Sequence[frozenset[str]],
        file: GGUFFile,
        limits: Limits,
        progress: Progress = no_progress,
    ) -> HostLane:
        widths = {buffer.name: buffer.width for buffer in spec.buffers}
        return HostLane(self.clock, self.section_s, widths, self.byte_s)

    def close(self) -> None: ...


@dataclass(slots=True)
class KnownOther:
    """A device whose messages keep the caller `busy_s`, and whose results take `away_s`."""

    clock: Clock
    busy_s: float
    away_s: float
    name: str = "other"
    batch_invariant: bool = False

    @property
    def capabilities(self) -> DeviceCapabilities:
        return DeviceCapabilities(fragments=self)

    def compile(self, spec: ModelSpec, file: GGUFFile, limits: Limits, progress: Progress = no_progress) -> Lane:
        raise NotImplementedError

    def compile_fragment(
        self, fragment: Fragment, file: GGUFFile, limits: Limits, progress: Progress = no_progress
    ) -> AwayLane:
        return AwayLane(self.clock, fragment, self.busy_s, self.away_s)

    def close(self) -> None: ...
