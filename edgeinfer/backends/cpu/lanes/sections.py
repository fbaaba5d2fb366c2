"""A model of which the CPU runs some sections while other devices run the rest: `capabilities.HostLane`.

In: a spec whose stages are the sections, the buffers that other devices read after each, steps. Out: buffers, which
receive the results of other devices between sections. Knows neither the other devices nor the order of sections.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from edgeinfer.backends.base import Limits
from edgeinfer.backends.cpu.lanes.lane import CpuLane, LaneResources, PassKind
from edgeinfer.backends.cpu.layout.padding import PaddedHeads
from edgeinfer.backends.cpu.lowering.fusion import Sections
from edgeinfer.backends.cpu.workers.tape import Tape
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.step import Floats, Step
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.steps import Progress


def sections_of(spec: ModelSpec, exposed: Sequence[frozenset[str]]) -> Sections:
    """The sections of a spec whose stages are sections."""
    return Sections(tuple(accumulate(len(stage.ops) for stage in spec.stages)), tuple(exposed))


class CpuSections(CpuLane):
    """A lane in sections; each section ends when all workers have finished it."""

    def __init__(
        self,
        spec: ModelSpec,
        sections: Sections,
        file: GGUFFile,
        limits: Limits,
        resources: LaneResources,
        progress: Progress,
    ) -> None:
        super().__init__(spec, file, limits, resources, progress, sections)
        bounds = list(zip((0, *sections.stops), sections.stops, strict=False))
        self._section_tapes, self._section_alone_tapes = (
            [Tape([call for _, calls in found[start:stop] for call in calls], self._library) for start, stop in bounds]
            for found in (self._calls[PassKind(False)], self._calls[PassKind(True)])
        )
        self._n_tokens = 0

    def use(self, most_workers: int) -> None:
        """Use at most that many workers from the next step on, with equal shares."""
        size = min(self.n_workers, most_workers)
        if size != self.worker_pool_size:
            self.worker_pool_size = size

    def begin(self, step: Step) -> None:
        """Load a step, and embed its tokens if the CPU has the embedding. Raises EngineClosed once closed."""
        self._start(step)
        self._n_tokens = len(step.batch.tokens)

    def run_section(self, number: int) -> None:
        """Run a section of the step."""
        tapes = self._section_alone_tapes if self._n_tokens == 1 else self._section_tapes
        self._worker_pool.run(tapes[number], self.work_split)

    def read(self, name: str) -> Floats:
        """The present rows of a buffer: float32[T or O, width], a view if its heads are not padded."""
        heads = self._buffers.heads.get(name)
        if heads is not None and heads.padded != heads.width:
            return self._buffers.value(name)
        return self._buffers.arrays[name][: self._buffers.n_rows(name), : self._spec.buffer(name).width]

    def write(self, name: str, first: int, values: Floats, *, adds: bool = False) -> None:
        """Write float32[T or O, n] into the columns from `first` on, or add it to their values."""
        own = self._buffers.arrays[name][: len(values)]
        heads = self._buffers.heads.get(name)
        for start, stop, column in _runs(heads, first, values.shape[1]):
            target = own[:, column : column + stop - start]
            if adds:
                target += values[:, start:stop]
            else:
                target[...] = values[:, start:stop]

    def close(self) -> None:
        """Leave the worker pool and free the memory. Safe to call twice."""
        self._section_tapes, self._section_alone_tapes = [], []
        super().close()


def _runs(heads: PaddedHeads | None, first: int, width: int) -> list[tuple[int, int, int]]:
    """(first, last + 1, column in the buffer) of each run of columns that lie together there."""
    if heads is None or heads.padded == heads.width:
        return [(0, width, first)]
    runs, start = [], 0
    while start < width:
        head, offset = divmod(first + start, heads.width)
        stop = min(width, start + heads.width - offset)
        runs.append((start, stop, head * heads.padded + offset))
        start = stop
    return runs
