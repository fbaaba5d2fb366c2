"""Weights in memory: packed into slabs that stay on the GPU or are streamed to it in each step.

In: a GGUF file, a budget. Out: the flat arrays that kernels read, per weight. If the budget does not hold all weights,
some stay in pinned host memory and alternate between two slabs on the GPU: one load is sent while the other is read.
Weights used by several stages, and embeddings, always stay on the GPU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends import weights
from edgeinfer.backends.cuda.driver import Driver, GpuArray, Stream
from edgeinfer.backends.cuda.footprint import weight_regions
from edgeinfer.backends.cuda.layout import ALIGNMENT, Form, IntegerForm, matrix_forms, padded
from edgeinfer.backends.cuda.packing import write_matrix
from edgeinfer.errors import DoesNotFit
from edgeinfer.graph.graph import ModelSpec, Stage
from edgeinfer.graph.operands import Weight
from edgeinfer.graph.ops.embed import Embed
from edgeinfer.graph.ops.layer_norm import LayerNorm
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.graph.ops.position_embed import PositionEmbed
from edgeinfer.graph.ops.rms_norm import RMSNorm
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.steps import Progress

DTYPES = {"codes": np.uint32, "high": np.uint32, "units": np.uint16, "values": np.float32}
NUMBERS = {"half": np.uint16, "multiple": np.int8, "float": np.float32}


@dataclass(frozen=True, slots=True)
class Placed:
    """A weight on the GPU: its form (None: float32 values) and the array of each region."""

    weight: Weight
    form: Form | None
    regions: dict[str, GpuArray]

    def region(self, name: str) -> GpuArray:
        """A region, or a placeholder that kernels do not read if the form has no such region."""
        return self.regions.get(name, next(iter(self.regions.values())))

    def integer_arrays(self) -> tuple[GpuArray, GpuArray, GpuArray, GpuArray]:
        """Codes, high bits, scales and units of integer weights; the codes take the place of missing regions."""
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
        if isinstance(op, Embed | PositionEmbed | LayerNorm | RMSNorm | MatMul):
            found += [*op.matrices, *op.vectors]
    return list(dict.fromkeys(found))


@dataclass(frozen=True, slots=True)
class StageWeights:
    """Weights of a stage that are kept on the GPU, or streamed, together."""

    stage: str
    weights: tuple[Weight, ...]
    is_spare: bool
    nbytes: int


class GpuWeights:
    """All weights of a model's parts. `budget`: GPU bytes they may take, None for no limit. Raises DoesNotFit.

    `spare`: weights that are streamed first.
    """

    def __init__(
        self,
        driver: Driver,
        spec: ModelSpec,
        file: GGUFFile,
        budget: int | None,
        progress: Progress,
        spare: frozenset[Weight] = frozenset(),
    ) -> None:
        self._driver, self._file = driver, file
        self._forms = matrix_forms(spec, file.tensors)
        self._regions = weight_regions(spec, file.tensors)
        kept, self._loads = self._choose(spec, spare, budget)
        self._slabs = [self._slab(list(load.weights)) for load in self._loads]
        self.sent: dict[str, list[int]] = {}
        """The loads of each stage that has streamed weights."""
        for number, load in enumerate(self._loads):
            self.sent.setdefault(load.stage, []).append(number)
        self._load_of = {weight: place for place, load in enumerate(self._loads) for weight in load.weights}
        self._resident: dict[Weight, Placed] = {}
        self._arrays: list[GpuArray] = []
        self._hosts: list[NDArray[np.uint8]] = []
        self._halves: tuple[GpuArray, ...] = ()
        self._load(kept, progress)

    def _choose(
        self, spec: ModelSpec, spare: frozenset[Weight], budget: int | None
    ) -> tuple[list[Weight], list[StageWeights]]:
        """The weights that stay on the GPU, and the loads streamed in each step, in order of use.

        The size of the two halves determines which loads can be streamed. The size chosen is the one that streams the
        fewest bytes, above all of weights that are not spare.
        """
        stages = {stage.name: stage_weights(stage) for stage in spec.stages}
        everything = list(dict.fromkeys(weight for found in stages.values() for weight in found))
        if budget is None or self._slab(everything).nbytes <= budget:
            return everything, []
        loads = self._movable(spec, stages, spare)
        fixed = self._slab([w for w in everything if not any(w in load.weights for load in loads)]).nbytes
        total = sum(load.nbytes for load in loads)
        best: tuple[tuple[int, int], set[StageWeights]] | None = None
        least = fixed + total
        for half in sorted({load.nbytes for load in loads}):
            room = budget - fixed - 2 * half - sum(load.nbytes for load in loads if load.nbytes > half)
            least = min(least, budget - room)
            if room >= 0:
                sent = self._sent([load for load in loads if load.nbytes <= half], room)
                unplanned = sum(load.nbytes for load in sent if not load.is_spare)
                cost = unplanned, sum(load.nbytes for load in sent)
                best = (cost, sent) if best is None or cost < best[0] else best
        if best is None:
            raise DoesNotFit(
                f"{self._driver.name} may use {budget} bytes for weights; streaming the model takes at least "
                f"{least}: use a smaller model or context, or raise EDGEINFER_CUDA_VRAM by {least - budget}"
            )
        chosen = [load for load in loads if load in best[1]]
        moved = {weight for load in chosen for weight in load.weights}
        return [weight for weight in everything if weight not in moved], chosen

    def _movable(
        self, spec: ModelSpec, stages: dict[str, list[Weight]], spare: frozenset[Weight]
    ) -> list[StageWeights]:
        """What can be streamed, in order of use: for each stage its spare weights, then the others."""
        uses = Counter(weight for found in stages.values() for weight in found)
        embeddings = {op.weight for op in spec.ops() if isinstance(op, Embed)}
        loads: list[StageWeights] = []
        for name, found in stages.items():
            if not found or embeddings & set(found) or any(uses[weight] > 1 for weight in found):
                continue
            for is_spare in (True, False):
                chosen = [weight for weight in found if (weight in spare) == is_spare]
                if chosen:
                    loads.append(StageWeights(name, tuple(chosen), is_spare, self._slab(chosen).nbytes))
        return loads

    @staticmethod
    def _sent(loads: list[StageWeights], room: int) -> set[StageWeights]:
        """Those of `loads` that have no room: spare ones before others, later ones before earlier ones."""
        found: set[StageWeights] = set()
        for load in sorted(loads, key=lambda load: load.is_spare):
            if load.nbytes <= room:
                room -= load.nbytes
            else:
                found.add(load)
        return found

    def _slab(self, found: list[Weight]) -> Slab:
        """Where the regions of these weights are stored in one slab."""
        places: dict[Weight, dict[str, tuple[int, int]]] = {}
        end = 0
        for weight in found:
            places[weight] = {}
            for name, size in self._regions[weight].items():
                places[weight][name] = (end, size)
                end += padded(size, ALIGNMENT)
        return Slab(places, end)

    def _load(self, kept: list[Weight], progress: Progress) -> None:
        """Pack everything: resident weights one by one, the others into pinned slabs."""
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
        for slab in self._slabs:
            host = self._driver.pinned(slab.nbytes, np.uint8).view(np.uint8)
            self._hosts.append(self._packed(slab, host))
            done += len(slab.places)
            progress("loading weights", done, total)
        if self._slabs:
            widest = max(slab.nbytes for slab in self._slabs)
            self._halves = tuple(self._driver.empty(widest, np.uint8) for _ in range(2))

    def _packed(self, slab: Slab, host: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Write the weights of a slab to it."""
        for weight, places in slab.places.items():
            regions = {name: host[start : start + size] for name, (start, size) in places.items()}
            if weight.tensor in self._forms:
                write_matrix(self._file, weight, regions)
            else:
                regions["values"][:] = weights.vector(self._file, weight).astype(np.float32).view(np.uint8)
        return host

    def _placed(self, weight: Weight, slab: Slab, array: GpuArray) -> Placed:
        """The arrays of a weight whose slab is stored in `array`."""
        form = self._forms.get(weight.tensor)
        regions: dict[str, GpuArray] = {}
        for name, (start, size) in slab.places[weight].items():
            is_number = name == "scales" and isinstance(form, IntegerForm)
            dtype = NUMBERS[form.scales] if is_number and isinstance(form, IntegerForm) else DTYPES[name]
            regions[name] = array[start : start + size].view(dtype)
        return Placed(weight, form, regions)

    def place(self, weight: Weight) -> Placed:
        """Where a weight is stored while its stage runs."""
        if weight in self._resident:
            return self._resident[weight]
        number = self._load_of[weight]
        return self._placed(weight, self._slabs[number], self._halves[number % 2])

    @property
    def resident_bytes(self) -> int:
        return sum(array.nbytes for array in (*self._arrays, *self._halves))

    @property
    def streamed_bytes(self) -> int:
        """Bytes of weights streamed in each step."""
        return sum(slab.nbytes for slab in self._slabs)

    @property
    def n_sent(self) -> int:
        """Loads streamed in each step, numbered in order of use."""
        return len(self._loads)

    def send(self, number: int, stream: Stream) -> None:
        """Copy a load to its half."""
        host = self._hosts[number]
        self._halves[number % 2][: len(host)].copy_to_device(host, stream=stream)

    def close(self) -> None:
        """Free the arrays."""
        self._resident, self._arrays, self._hosts, self._halves = {}, [], [], ()


class StageFeeding:
    """Runs stages and streams weights ahead on a stream of its own, including those of the next step.

    Loads alternate between the two halves. A load is sent as soon as the previous contents of its half have been read,
    so that the transfer overlaps with earlier stages, here or on other devices.
    """

    def __init__(self, driver: Driver, held: GpuWeights) -> None:
        self._weights = held
        self._copying = driver.stream()
        self._sent = [driver.event() for _ in range(2)]
        self._read = [driver.event() for _ in range(2)]
        self._holds: list[int | None] = [None, None]
        self._is_read = [True, True]
        self._next = 0
        self._loads = held.sent

    def run(self, names: Sequence[str], start: Callable[[str], None], stream: Stream) -> None:
        """Launch each stage on `stream` once its weights have arrived."""
        for name in names:
            loads = self._loads.get(name, ())
            for number in loads:
                if self._holds[number % 2] != number:  # the first step, or one after an aborted step
                    self._send(number)
                self._sent[number % 2].wait(stream)
            start(name)
            for number in loads:
                self._read[number % 2].record(stream)
                self._is_read[number % 2] = True
            self._send_ahead()

    def _send_ahead(self) -> None:
        """Send the next loads, as far as their halves are free."""
        for _ in range(min(2, self._weights.n_sent)):
            half = self._next % 2
            if self._holds[half] == self._next:
                self._next, self._is_read[half] = (self._next + 1) % self._weights.n_sent, False
            elif self._is_read[half]:
                self._send(self._next)
            else:
                return

    def _send(self, number: int) -> None:
        half = number % 2
        self._read[half].wait(self._copying)
        self._weights.send(number, self._copying)
        self._sent[half].record(self._copying)
        self._holds[half], self._is_read[half] = number, False
        self._next = (number + 1) % self._weights.n_sent
