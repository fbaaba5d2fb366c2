"""Weights in memory: packed stage by stage into slabs, kept on the GPU or sent there for each step.

In: a GGUF file, a budget. Out: for each weight the flat arrays that kernels read. Where the budget does not hold all
stages, the last ones stay in pinned memory of the host, and two slabs of the GPU take them in turns, so that a stage is
sent while the one before it runs. Weights of several stages, and embeddings, always stay on the GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends import weights
from edgeinfer.backends.base import Progress
from edgeinfer.backends.cuda.driver import Driver, GpuArray, Stream
from edgeinfer.backends.cuda.footprint import weight_regions
from edgeinfer.backends.cuda.layout import ALIGNMENT, Form, IntegerForm, matrix_forms, padded
from edgeinfer.backends.cuda.packing import write_matrix
from edgeinfer.errors import DoesNotFit
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.spec import ModelSpec, Stage
from edgeinfer.ops import Embed, MatMul, RMSNorm, Weight

DTYPES = {"codes": np.uint32, "high": np.uint32, "units": np.uint16, "values": np.float32}
NUMBERS = {"half": np.uint16, "multiple": np.int8, "float": np.float32}


@dataclass(frozen=True, slots=True)
class Placed:
    """A weight on the GPU: its form (None: float32 values) and the array of each region."""

    weight: Weight
    form: Form | None
    regions: dict[str, GpuArray]

    def region(self, name: str) -> GpuArray:
        """A region, or, where the form has none of that name, another, which kernels do not read then."""
        return self.regions.get(name, next(iter(self.regions.values())))

    def integer_arrays(self) -> tuple[GpuArray, GpuArray, GpuArray, GpuArray]:
        """Codes, high bits, scales and units of integer weights; codes stand for what the form does not have."""
        codes = self.region("codes")
        units = self.regions.get("units", codes.view(np.uint16))
        return codes, self.region("high"), self.region("scales"), units


@dataclass(frozen=True, slots=True)
class Slab:
    """Weights that move together, where each region begins, and their bytes."""

    places: dict[Weight, dict[str, tuple[int, int]]]
    nbytes: int


def stage_weights(stage: Stage) -> list[Weight]:
    """The weights a stage reads, each once."""
    found: list[Weight] = []
    for op in stage.ops:
        if isinstance(op, Embed | RMSNorm | MatMul):
            found.append(op.weight)
        if isinstance(op, MatMul) and op.bias is not None:
            found.append(op.bias)
    return list(dict.fromkeys(found))


class Weights:
    """All weights of a lane. `budget`: bytes of the GPU they may take, None for no limit. Raises DoesNotFit."""

    def __init__(self, driver: Driver, spec: ModelSpec, file: GGUFFile, budget: int | None, progress: Progress) -> None:
        self._driver, self._file = driver, file
        self._forms = matrix_forms(spec, file.tensors)
        self._regions = weight_regions(spec, file.tensors)
        stages = {stage.name: stage_weights(stage) for stage in spec.stages}
        kept, self.streamed = self._choose(spec, stages, budget)
        self._slabs = {name: self._slab(stages[name]) for name in self.streamed}
        self._slab_of = {weight: name for name, slab in self._slabs.items() for weight in slab.places}
        self._resident: dict[Weight, Placed] = {}
        self._arrays: list[GpuArray] = []
        self._hosts: dict[str, NDArray[np.uint8]] = {}
        self.halves: tuple[GpuArray, ...] = ()
        self._load(kept, progress)

    def _choose(
        self, spec: ModelSpec, stages: dict[str, list[Weight]], budget: int | None
    ) -> tuple[list[Weight], list[str]]:
        """The weights that stay on the GPU, and the stages whose other weights are sent for each step."""
        sizes = {name: self._slab(found).nbytes for name, found in stages.items()}
        everything = list(dict.fromkeys(weight for found in stages.values() for weight in found))
        if budget is None or self._slab(everything).nbytes <= budget:
            return everything, []
        uses = [weight for found in stages.values() for weight in found]
        pinned = {op.weight for op in spec.ops() if isinstance(op, Embed)}
        pinned |= {weight for weight in uses if uses.count(weight) > 1}
        movable = [name for name, found in stages.items() if found and not pinned & set(found)]
        fixed = [weight for name, found in stages.items() if name not in movable for weight in found]
        fixed = list(dict.fromkeys(fixed))
        widest = max((sizes[name] for name in movable), default=0)
        room = budget - self._slab(fixed).nbytes - 2 * widest
        if room < 0:
            raise DoesNotFit(
                f"{self._driver.name} may use {budget} bytes for weights; streaming the model takes at least "
                f"{budget - room}: use a smaller model or context, or raise EDGEINFER_CUDA_VRAM"
            )
        streamed: list[str] = []
        for name in movable:
            room -= sizes[name]
            if room < 0:
                streamed.append(name)
            else:
                fixed += stages[name]
        return fixed, streamed

    def _slab(self, found: list[Weight]) -> Slab:
        """Where the regions of weights lie in one slab."""
        places: dict[Weight, dict[str, tuple[int, int]]] = {}
        end = 0
        for weight in found:
            places[weight] = {}
            for name, size in self._regions[weight].items():
                places[weight][name] = (end, size)
                end += padded(size, ALIGNMENT)
        return Slab(places, end)

    def _load(self, kept: list[Weight], progress: Progress) -> None:
        """Pack everything: weights that stay one by one, the others into pinned slabs."""
        total, done = len(self._regions), 0
        for weight in kept:
            slab = self._slab([weight])
            host = self._packed(slab, np.zeros(slab.nbytes, np.uint8))
            array = self._driver.empty(slab.nbytes, np.uint8)
            array.copy_to_device(host)
            self._arrays.append(array)
            self._resident[weight] = self._placed(weight, slab, array)
            done += 1
            progress("loading weights", done, total)
        for name, slab in self._slabs.items():
            host = self._driver.pinned(slab.nbytes, np.uint8).view(np.uint8)
            self._hosts[name] = self._packed(slab, host)
            done += len(slab.places)
            progress("loading weights", done, total)
        if self._slabs:
            widest = max(slab.nbytes for slab in self._slabs.values())
            self.halves = tuple(self._driver.empty(widest, np.uint8) for _ in range(2))

    def _packed(self, slab: Slab, host: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Write the weights of a slab into it."""
        for weight, places in slab.places.items():
            regions = {name: host[start : start + size] for name, (start, size) in places.items()}
            if weight.tensor in self._forms:
                write_matrix(self._file, weight, regions)
            else:
                regions["values"][:] = weights.vector(self._file, weight).astype(np.float32).view(np.uint8)
        return host

    def _placed(self, weight: Weight, slab: Slab, array: GpuArray) -> Placed:
        """The arrays of a weight whose slab lies in `array`."""
        form = self._forms.get(weight.tensor)
        regions: dict[str, GpuArray] = {}
        for name, (start, size) in slab.places[weight].items():
            is_number = name == "scales" and isinstance(form, IntegerForm)
            dtype = NUMBERS[form.scales] if is_number and isinstance(form, IntegerForm) else DTYPES[name]
            regions[name] = array[start : start + size].view(dtype)
        return Placed(weight, form, regions)

    def place(self, weight: Weight) -> Placed:
        """Where a weight lies when its stage runs."""
        if weight in self._resident:
            return self._resident[weight]
        name = self._slab_of[weight]
        return self._placed(weight, self._slabs[name], self.halves[self.streamed.index(name) % 2])

    @property
    def resident_bytes(self) -> int:
        return sum(array.nbytes for array in (*self._arrays, *self.halves))

    def send(self, name: str, stream: Stream) -> None:
        """Copy a streamed stage to its half."""
        host = self._hosts[name]
        half = self.halves[self.streamed.index(name) % 2]
        half[: len(host)].copy_to_device(host, stream=stream)

    def close(self) -> None:
        """Drop the arrays."""
        self._resident, self._arrays, self._hosts, self.halves = {}, [], {}, ()


class Feeding:
    """Runs stages in order while the streamed ones are sent ahead on a stream of their own."""

    def __init__(self, driver: Driver, held: Weights) -> None:
        self._weights = held
        self._copying = driver.stream()
        self._sent = [driver.event() for _ in range(2)]
        self._read = [driver.event() for _ in range(2)]

    def run(self, names: list[str], start: Callable[[str], None], stream: Stream) -> None:
        """Start each stage on `stream` once its weights are there."""
        streamed = self._weights.streamed
        for place in range(min(2, len(streamed))):
            self._read[place].record(stream)
            self._send(place)
        for name in names:
            if name not in streamed:
                start(name)
                continue
            place = streamed.index(name)
            self._sent[place % 2].wait(stream)
            start(name)
            self._read[place % 2].record(stream)
            if place + 2 < len(streamed):
                self._send(place + 2)

    def _send(self, place: int) -> None:
        half = place % 2
        self._read[half].wait(self._copying)
        self._weights.send(self._weights.streamed[place], self._copying)
        self._sent[half].record(self._copying)
