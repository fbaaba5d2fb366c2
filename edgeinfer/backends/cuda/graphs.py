"""Steps recorded as CUDA graphs, which the driver launches in one call.

In: a stream and a function that launches a step's kernels on it. Out: a `RecordedStep`. If cuda-python is missing,
under the simulator, or if recording fails, nothing is recorded and kernels are launched one by one. Independent of what
the kernels do.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Protocol

from numba import cuda

from edgeinfer.backends.cuda.driver import FAILURES, Driver, Stream


class Bindings(Protocol):
    """The functions used from cuda.bindings.driver."""

    def __getattr__(self, name: str) -> Callable[..., tuple[object, ...]]: ...


class GraphFailed(Exception):
    """A call of the driver's graph functions failed."""


RECORDING_FAILURES: tuple[type[Exception], ...] = (GraphFailed, *FAILURES)


class RecordedStep:
    """A recorded step."""

    def __init__(self, bindings: Bindings, graph: object, executable: object) -> None:
        self._bindings, self._graph, self._executable = bindings, graph, executable

    def launch(self, stream: Stream) -> None:
        """Launch it. Raises GraphFailed."""
        _done(self._bindings.cuGraphLaunch(self._executable, _handle(self._bindings, stream)))

    def close(self) -> None:
        """Free it."""
        self._bindings.cuGraphExecDestroy(self._executable)
        self._bindings.cuGraphDestroy(self._graph)


class Recorder:
    """Records graphs until recording fails."""

    def __init__(self, driver: Driver, bindings: Bindings | None = None) -> None:
        self._bindings = None if driver.simulated and bindings is None else bindings or found_bindings()

    @property
    def works(self) -> bool:
        return self._bindings is not None

    def record(self, start: Callable[[], None], stream: Stream) -> RecordedStep | None:
        """Record what `start` launches on `stream` as a graph; nothing runs. Returns None if recording fails.

        All kernels must be compiled already.
        """
        bindings = self._bindings
        if bindings is None:
            return None
        handle = _handle(bindings, stream)
        try:
            mode = importlib.import_module("cuda.bindings.driver").CUstreamCaptureMode
            with cuda.defer_cleanup():
                _done(bindings.cuStreamBeginCapture(handle, mode.CU_STREAM_CAPTURE_MODE_RELAXED))
                try:
                    start()
                finally:
                    ended = bindings.cuStreamEndCapture(handle)
            (graph,) = _done(ended)
            (executable,) = _done(bindings.cuGraphInstantiate(graph, 0))
        except RECORDING_FAILURES:
            self._bindings = None
            return None
        return RecordedStep(bindings, graph, executable)


def found_bindings() -> Bindings | None:
    """cuda.bindings.driver, if it is installed."""
    try:
        bindings: Bindings = importlib.import_module("cuda.bindings.driver")
    except ImportError:
        return None
    return bindings


def _handle(bindings: Bindings, stream: Stream) -> object:
    return bindings.CUstream(int(stream))  # type: ignore[call-overload]


def _done(answer: tuple[object, ...]) -> tuple[object, ...]:
    """The result of a driver function after its status. Raises GraphFailed."""
    status, *rest = answer
    if int(status) != 0:  # type: ignore[call-overload]
        raise GraphFailed(str(status))
    return tuple(rest)
