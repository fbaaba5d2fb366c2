"""A model on the CPU whose keys and values are in a file, of which a part is in memory.

In: steps. Out: logits, bit-identical to those of a lane that holds all keys and values. A pass is cut into launches
where a layer attends: what it is about to read is brought in together, by the lists of chunks that a budget has chosen,
or all of a text for tokens that see everything. What was not used for longest leaves memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from edgeinfer.backends.base import Limits, OpSeconds, Timing
from edgeinfer.backends.capabilities import KernelTime
from edgeinfer.backends.cpu.lanes.lane import CpuLane, LaneResources, PassKind
from edgeinfer.backends.cpu.layout.step_records import TILE
from edgeinfer.backends.cpu.lowering.fusion import Sections
from edgeinfer.backends.cpu.memory.filed_pages import FiledPages
from edgeinfer.backends.cpu.workers.tape import Call, Tape
from edgeinfer.backends.memories import KeyTurner
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.op import Op
from edgeinfer.graph.ops.attention import Attention
from edgeinfer.graph.step import PAGE, Floats, Int32s, Step
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.steps import Progress

T = TypeVar("T")
N_CALLS = 3
"""The last calls of an op of attention, which read what was chosen."""
ROW, HIGHEST = TILE["row"] // 4, TILE["highest"] // 4


@dataclass(frozen=True, slots=True)
class Launch:
    """Calls that run together. Before them a layer's keys and values are brought in, None: nothing.

    `chosen`: those that budgets have chosen; else all of the texts, or of the `window` that the layer sees. `in_turn`:
    of a pass that reads layer after layer in that way.
    """

    layer: int | None
    chosen: bool
    window: int | None
    in_turn: bool
    tape: Tape


class FiledLane(CpuLane):
    """A compiled model with `limits.kv_ram`."""

    def __init__(
        self,
        spec: ModelSpec,
        file: GGUFFile,
        limits: Limits,
        resources: LaneResources,
        progress: Progress,
        sections: Sections | None = None,
    ) -> None:
        super().__init__(spec, file, limits, resources, progress, sections)
        filed = self._kv.filed
        assert filed is not None
        self._filed = filed
        self._launches: dict[PassKind, list[Launch]] = {}
        self._timing = Timing(0.0, ())
        self._turner = None if self._turner is None else PartwiseTurner(self._turner, filed)

    def _launches_of(self, kind: PassKind) -> list[Launch]:
        """Launches, each of which begins where a layer in the file attends."""
        if kind not in self._launches:
            self._launches[kind] = self._cut(self._calls_of(kind), kind)
        return self._launches[kind]

    def _cut(self, calls: list[tuple[Op, list[Call]]], kind: PassKind) -> list[Launch]:
        starts: list[tuple[int | None, bool, int | None]] = [(None, False, None)]
        runs: list[list[Call]] = [[]]
        for op, its_calls in calls:
            layer = self._kv.number_in_file(op.layer) if isinstance(op, Attention) else None
            if layer is None or not isinstance(op, Attention):
                runs[-1].extend(its_calls)
                continue
            is_within = kind.within and op.window is None
            n_before = len(its_calls) - N_CALLS if is_within else 0
            if n_before and op.block_budget is not None:
                starts.append((layer, False, None))  # blocks score all keys before them
                runs.append([])
            runs[-1].extend(its_calls[:n_before])
            starts.append((layer, is_within, op.window))
            runs.append(its_calls[n_before:])
        tapes = [Tape(run, self._library) for run in runs]
        return [Launch(*start, not kind.within, tape) for start, tape in zip(starts, tapes, strict=True)]

    def run(self, step: Step) -> Floats:
        """Evaluate one step: float32[O, V], a view that the next run overwrites. Raises EngineClosed once closed.

        Raises DeviceFailed if the disk fails, after which the next step starts afresh.
        """
        self._start(step)
        reading = PageReading(step)
        seconds, busy = 0.0, [0.0] * len(self.work_split.workers)
        for launch in self._launches_of(self._kind_of(step)):
            if launch.layer is not None:
                self._bring(launch, launch.layer, reading)
            self._worker_pool.run(launch.tape, self.work_split)
            timing = self._worker_pool.timing
            seconds += timing.seconds
            busy = [before + spent for before, spent in zip(busy, timing.busy, strict=True)]
        self._timing = Timing(seconds, tuple(busy))
        return self._logits(step)

    def _bring(self, launch: Launch, layer: int, reading: PageReading) -> None:
        """Have in memory what a layer is about to read."""
        if launch.chosen:
            n_heads = self._filed.pools[layer].keys.shape[1]
            tiles, lists = self._step.tiles, self._lowering.attention.lists_of(self._step.n_tiles, n_heads)
            self._filed.use(layer, *reading.listed(tiles, lists, n_heads))
        else:
            self._filed.use_all(layer, reading.pages(launch.window), in_turn=launch.in_turn)

    @property
    def seconds(self) -> float:
        """How long the last step took on the worker pool."""
        return self._timing.seconds

    @property
    def timing(self) -> Timing:
        """The same, and how busy workers were."""
        return self._timing

    def _summarise(self, pages: Int32s) -> None:
        for part in self._filed.in_groups(pages):
            super()._summarise(pages[part])

    def copy_slots(self, sources: Int32s, targets: Int32s) -> None:
        """Copy keys and values from slots to slots in all layers."""
        self._filed.use_pages(np.unique(np.concatenate([sources, targets]) // PAGE))
        super().copy_slots(sources, targets)

    def watch(self, step: Step, seen: Callable[[Op], None]) -> Floats:
        """As `CpuLane.watch`."""
        return self._measured(lambda: super(FiledLane, self).watch(step, seen))

    def profile(self, step: Step) -> list[KernelTime]:
        """As `CpuLane.profile`; what is not in memory is read meanwhile."""
        return self._measured(lambda: super(FiledLane, self).profile(step))

    def time_ops(self, step: Step, stages: Collection[str] | None = None) -> list[OpSeconds]:
        """As `CpuLane.time_ops`; what is not in memory is read meanwhile."""
        return self._measured(lambda: super(FiledLane, self).time_ops(step, stages))

    def _measured(self, run: Callable[[], T]) -> T:
        """What a whole tape returns, which touches pages that nothing is noted of."""
        try:
            return run()
        finally:
            self._filed.empty()

    def close(self) -> None:
        """Leave the worker pool and free the memory and the file. Safe to call twice."""
        if not self._closed:
            self._launches.clear()
            del self._filed
        super().close()


class PageReading:
    """The KV pages that a step reads."""

    def __init__(self, step: Step) -> None:
        self._tables, self._written = step.tables, np.unique(step.slots // PAGE)
        self._rows, self._positions = step.rows, step.batch.positions
        self._within: dict[int | None, Int32s] = {}

    def pages(self, window: int | None) -> Int32s:
        """Pages of all texts, as far as tokens see them through a window, and those written to."""
        if window not in self._within:
            texts = [self._written]
            for row, table in enumerate(self._tables):
                positions = self._positions[self._rows == row]
                first = 0 if window is None else max(0, int(positions.min()) + 1 - window)
                texts.append(table[first // PAGE : int(positions.max()) // PAGE + 1])
            self._within[window] = np.unique(np.concatenate(texts))
        return self._within[window]

    def listed(self, tiles: Int32s, lists: Int32s, n_heads: int) -> tuple[Int32s, Int32s]:
        """Pages and KV heads that lists of chunks name, pairwise, and pages written to.

        tiles int32[n, TILE_INTS]; lists int32[n * n_heads, 1 + most]: how many chunks, and which; -1: all of the text.
        """
        counts = lists[:, 0]
        task, place = np.nonzero(np.arange(max(0, int(counts.max()))) < counts[:, None])
        pages = [self._tables[tiles[task // n_heads, ROW], lists[task, 1 + place]]]
        heads = [task % n_heads]
        everyone = np.arange(n_heads)
        whole = sorted({number // n_heads for number, count in enumerate(counts.tolist()) if count < 0})
        texts = [self._tables[tiles[tile, ROW], : tiles[tile, HIGHEST] // PAGE + 1] for tile in whole]
        for each in (self._written, *texts):
            pages.append(np.repeat(each, n_heads))
            heads.append(np.tile(everyone, len(each)))
        return np.concatenate(pages), np.concatenate(heads)


class PartwiseTurner:
    """As `KeyTurner`, a part of the slots at a time."""

    def __init__(self, turner: KeyTurner, filed: FiledPages) -> None:
        self._turner, self._filed = turner, filed

    def turn_slots(
        self, sources: Int32s, targets: Int32s, distance: int, n_unseen: int = 0, scale: float = 1.0
    ) -> None:
        """As `KeyTurner.turn_slots`."""
        for start in range(0, len(sources), self._filed.group_slots):
            part = slice(start, start + self._filed.group_slots)
            own = sources[part], targets[part]
            self._filed.use_pages(np.unique(np.concatenate(own) // PAGE))
            self._turner.turn_slots(*own, distance, min(len(own[0]), max(0, n_unseen - start)), scale)
