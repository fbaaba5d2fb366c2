"""A model, or part of one, on the GPU: runs steps there without the host, and holds its KV pages.

In: steps and the rows of input buffers. Out: the rows of output buffers. One copy sends the step, one copy per input
and output moves rows; in between only kernels run, from a recorded graph for small passes that repeat.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.capabilities import LaneCapabilities
from edgeinfer.backends.cuda.caches import CudaWindows
from edgeinfer.backends.cuda.driver import FAILURES, RECORDING_FAILURES, RecordedStep
from edgeinfer.backends.cuda.model import CudaModel, stage_name
from edgeinfer.backends.cuda.step import LaunchShape
from edgeinfer.errors import DeviceFailed, EngineClosed
from edgeinfer.graph.graph import Fragment
from edgeinfer.graph.step import Floats, Int32s, Step

MOST_RECORDED = 64
"""Most tokens of a pass that is recorded as a graph."""
MOST_GRAPHS = 32


class CudaFragmentLane:
    """Fragment `number` of a model's fragments on the GPU; one of them runs at a time."""

    def __init__(self, model: CudaModel, fragment: Fragment, number: int) -> None:
        self.model, self._driver, self._stream = model, model.driver, model.stream
        self._inputs, self._outputs, self._number = fragment.inputs, fragment.outputs, number
        self._stages = [stage_name(number, stage.name) for stage in fragment.spec.stages]
        self._caches = model.caches[number]
        self._marks = model.driver.event(), model.driver.event()
        self._hosts = {name: model.host(name) for name in (*fragment.inputs, *fragment.outputs)}
        self._recorder = model.recorder
        self._graphs: dict[LaunchShape, RecordedStep | None] = {}
        # cuBLAS may allocate memory, which is forbidden while recording.
        self._fewest_unrecorded = min(MOST_RECORDED + 1, model.fewest_large)
        self._shape: LaunchShape | None = None
        self._began, self._seconds = 0.0, 0.0
        self._closed = False

    @property
    def resident_bytes(self) -> int:
        """Bytes of GPU memory, fewer than the footprint if weights are streamed.

        Memory that all parts share is counted for the first part.
        """
        if self._closed:
            return 0
        return self._caches.nbytes + (self.model.shared_bytes if self._number == 0 else 0)

    @property
    def windows(self) -> CudaWindows | None:
        """Layers with a window."""
        return self._caches.windows

    @property
    def streamed_bytes(self) -> int:
        """Bytes of weights streamed in each step, over all parts."""
        return self.model.streamed_bytes

    @property
    def records(self) -> bool:
        """Whether small passes run from recorded graphs."""
        return self._recorder.works and not any(map(self.model.is_streamed, self._stages))

    def submit(self, step: Step, inputs: Mapping[str, Floats]) -> None:
        """Start a step. Raises EngineClosed, DeviceFailed."""
        if self._closed:
            raise EngineClosed("the model is closed; load it again")
        try:
            self._driver.enter()
            self._stream.synchronize()
            self._start(step, inputs)
        except RECORDING_FAILURES as error:
            raise DeviceFailed(f"{self._driver.name} failed: {error}") from error

    def _start(self, step: Step, inputs: Mapping[str, Floats]) -> None:
        """Send a step and its inputs, launch its kernels and request its outputs."""
        self._began = time.perf_counter()
        self._marks[0].record(self._stream)
        shape = self.model.send(step)
        for name in self._inputs:
            rows = inputs[name]
            host = self._hosts[name]
            host[: len(rows), : rows.shape[1]] = rows
            self.model.rows(name, len(rows)).copy_to_device(host[: len(rows)].reshape(-1), stream=self._stream)
        self._run(shape)
        for name in self._outputs:
            count = self._n_rows(name, shape)
            if count:
                self.model.rows(name, count).copy_to_host(self._hosts[name][:count].reshape(-1), stream=self._stream)
        self._marks[1].record(self._stream)
        self._shape = shape

    def _run(self, shape: LaunchShape) -> None:
        """Launch the kernels of a pass, from a graph once the pass has run without one."""
        is_recorded = self.records and shape.tokens < self._fewest_unrecorded
        graph = self._graphs.get(shape) if is_recorded else None
        if graph is not None:
            graph.launch(self._stream)
            return
        self.start_kernels(shape)
        if is_recorded and shape not in self._graphs:
            self._stream.synchronize()
            if len(self._graphs) >= MOST_GRAPHS:
                self._drop_graphs()
            self._graphs[shape] = self._recorder.record(lambda: self.start_kernels(shape), self._stream)

    def start_kernels(self, shape: LaunchShape) -> None:
        """Launch the kernels of a pass on the current buffer contents, without a graph."""
        self.model.start(self._stages, shape)

    def _n_rows(self, name: str, shape: LaunchShape) -> int:
        return shape.tokens if self.model.layout.is_tokens(name) else shape.outputs

    def wait(self) -> Mapping[str, Floats]:
        """The output buffers of the last step, valid until any part's next step. Raises DeviceFailed."""
        if self._shape is None:
            raise ValueError("no step was submitted")
        try:
            self._driver.enter()
            self._stream.synchronize()
            timed = self._marks[0].elapsed_time(self._marks[1])
        except FAILURES as error:
            raise DeviceFailed(f"{self._driver.name} failed: {error}") from error
        self._seconds = timed / 1e3 if timed >= 0 else time.perf_counter() - self._began
        found: dict[str, Floats] = {}
        for name in self._outputs:
            found[name] = self._hosts[name][: self._n_rows(name, self._shape), : self.model.layout.width(name)]
        return found

    @property
    def ran(self) -> tuple[float, float]:
        """When the last step was submitted to the GPU, and that time plus its duration there, by time.perf_counter."""
        return self._began, self._began + self._seconds

    def copy_slots(self, sources: Int32s, targets: Int32s) -> None:
        """Copy keys and values of slots, in order, in all layers."""
        self._caches.copy_slots(sources, targets, self._stream)

    def read_pages(self, pages: Int32s) -> NDArray[np.uint8]:
        """Contents of pages: uint8[len(pages), page_bytes]."""
        self._stream.synchronize()
        return self._caches.read_pages(pages)

    def write_pages(self, pages: Int32s, contents: NDArray[np.uint8]) -> None:
        """Restore the contents of pages."""
        self._stream.synchronize()
        self._caches.write_pages(pages, contents)

    def _drop_graphs(self) -> None:
        for graph in self._graphs.values():
            if graph is not None:
                graph.close()
        self._graphs.clear()

    def close(self) -> None:
        """Free the memory. May be called twice."""
        if self._closed:
            return
        self._stream.synchronize()
        self._closed = True
        self._drop_graphs()
        self._caches.close()
        self._hosts.clear()
        self.model.leave()


class CudaLane:
    """A whole model: a fragment with no inputs whose output is the logits."""

    def __init__(self, part: CudaFragmentLane, logits: str) -> None:
        self.part, self.capabilities = part, LaneCapabilities(windows=part.windows)
        self._logits = logits
        self.copy_slots, self.read_pages = self.part.copy_slots, self.part.read_pages
        self.write_pages, self.close = self.part.write_pages, self.part.close

    @property
    def resident_bytes(self) -> int:
        return self.part.resident_bytes

    @property
    def streamed_bytes(self) -> int:
        """Bytes of weights streamed in each step."""
        return self.part.streamed_bytes

    def run(self, step: Step) -> Floats:
        """Evaluate one step: float32[O, V], a view that the next run overwrites."""
        self.part.submit(step, {})
        return self.part.wait()[self._logits]
