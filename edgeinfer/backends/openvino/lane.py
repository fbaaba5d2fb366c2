"""Lanes: a compiled graph, the states of its keys and values, one step after another.

In: steps and input buffers. Out: output buffers, views of OpenVINO's own memory. Knows nothing of how the graph came
about.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from edgeinfer.backends.base import Floats, Int32s, Step
from edgeinfer.backends.openvino.feeding import Arrays, Feed
from edgeinfer.backends.openvino.states import States
from edgeinfer.errors import DeviceFailed, EngineClosed


class OpenVinoFragmentLane:
    """A fragment on one processor of OpenVINO; steps are asynchronous infer requests."""

    def __init__(
        self, request: ov.InferRequest, feed: Feed, states: States, outputs: tuple[str, ...], resident_bytes: int
    ) -> None:
        self._request: ov.InferRequest | None = request
        self._feed, self._states, self._outputs = feed, states, outputs
        self._resident_bytes = resident_bytes
        self._lent: Arrays = {}
        self._began = 0.0
        self.ran = (0.0, 0.0)

    @property
    def resident_bytes(self) -> int:
        return self._resident_bytes if self._request is not None else 0

    def submit(self, step: Step, inputs: Mapping[str, Floats]) -> None:
        """Start a step."""
        request = self._open_request()
        try:
            self._states.make_room()
            self._lent = self._feed.arrays(step, self._states.rows, inputs)
            for name, array in self._lent.items():
                request.set_tensor(name, ov.Tensor(array, shared_memory=True))
            self._began = time.perf_counter()
            request.start_async()
        except RuntimeError as reason:
            raise DeviceFailed(f"openvino could not start a step: {_first_line(reason)}") from None
        self._states.rows.append(step.slots)

    def wait(self) -> Mapping[str, Floats]:
        """The outputs of the step, float32[T or O, width]. Raises DeviceFailed."""
        request = self._open_request()
        try:
            request.wait()
        except RuntimeError as reason:
            raise DeviceFailed(f"openvino failed in the middle of a step: {_first_line(reason)}") from None
        self.ran = (self._began, self._began + request.latency / 1e3)
        return {name: request.get_output_tensor(place).data[0] for place, name in enumerate(self._outputs)}

    def copy_slots(self, sources: Int32s, targets: Int32s) -> None:
        """The targets name the rows of the sources; nothing is moved."""
        self._states.rows.copy(sources, targets)

    def read_pages(self, pages: Int32s) -> NDArray[np.uint8]:
        """Contents of pages: uint8[len(pages), page_bytes]."""
        self._open_request()
        return self._states.read(pages)

    def write_pages(self, pages: Int32s, contents: NDArray[np.uint8]) -> None:
        """Put back contents of pages."""
        self._open_request()
        self._states.write(pages, contents)

    def close(self) -> None:
        """Give back the graph and its states."""
        self._request, self._lent = None, {}
        self._states.close()

    def _open_request(self) -> ov.InferRequest:
        if self._request is None:
            raise EngineClosed("the model is closed; load it again")
        return self._request


class OpenVinoLane(OpenVinoFragmentLane):
    """A whole model on one processor of OpenVINO."""

    def run(self, step: Step) -> Floats:
        """Evaluate one step: float32[O, V], valid until the next run."""
        self.submit(step, {})
        return self.wait()[self._outputs[0]]


def _first_line(reason: BaseException) -> str:
    """What an error of OpenVINO says, without the places in its sources that it names."""
    lines = [line.strip() for line in str(reason).splitlines() if line.strip()]
    return lines[-1] if lines else type(reason).__name__
