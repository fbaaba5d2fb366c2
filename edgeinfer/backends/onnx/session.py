"""One ONNX Runtime session: created on an execution provider from a graph or its file, its buffers bound by address.

In: a graph or a path, a target ("cuda" of "onnx:cuda"), options, arrays. Out: results, in the arrays given. Runs that
exceed their time limit are ended between two operators, without a thread per run. A stall within one operator cannot be
ended: runtimes with drivers, which may stall, are waited for from another thread instead. Independent of models.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from edgeinfer.backends.onnx.graph import OnnxGraph
from edgeinfer.errors import DeviceFailed, DeviceUnavailable, EdgeInferError
from edgeinfer.jit.memory import trim_heap

SUFFIX = "ExecutionProvider"
CPU = "CPUExecutionProvider"
REMOTE = "azure"
"""A provider that sends its input to a server; it is never used."""
PACKAGES = {
    "cuda": "onnxruntime-gpu",
    "tensorrt": "onnxruntime-gpu",
    "dml": "onnxruntime-directml",
    "coreml": "onnxruntime (on macOS)",
    "qnn": "onnxruntime-qnn",
    "openvino": "onnxruntime-openvino",
    "webgpu": "onnxruntime-webgpu",
    "migraphx": "onnxruntime-migraphx",
    "cann": "onnxruntime-cann",
}


def target_of(provider: str) -> str:
    """The user-facing name of a provider."""
    return provider.removesuffix(SUFFIX).lower()


def providers_for(target: str, available: Sequence[str]) -> tuple[str, ...]:
    """The provider of a target ("" is the CPU), followed by the CPU provider as fallback. Raises DeviceUnavailable."""
    by_target = {target_of(name): name for name in available if target_of(name) != REMOTE}
    wanted = target.lower() or target_of(CPU)
    if wanted not in by_target:
        package = PACKAGES.get(wanted)
        advice = f"; that provider comes with: pip install {package}" if package else ""
        there_are = ", ".join(f"onnx:{name}" for name in sorted(by_target))
        raise DeviceUnavailable(
            f"the installed ONNX Runtime has no execution provider {target[:40]!r}; it has: {there_are}{advice}"
        )
    return tuple(dict.fromkeys((by_target[wanted], CPU)))


FATAL = 4
SHORT_OF_MEMORY = ("bad allocation", "bad_alloc", "failed to allocate", "out of memory")
HOST = "cpu"
SPIN_US = "1000"


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output: its type as ONNX Runtime writes it, its dimensions as numbers, names or None."""

    name: str
    kind: str
    shape: tuple[int | str | None, ...]


class GraphSession:
    """A runnable graph; bindings stay until they are replaced."""

    def __init__(self, session: onnxruntime.InferenceSession) -> None:
        self._session = session
        self._binding = self._session.io_binding()
        self._bound: dict[str, tuple[NDArray[np.generic], tuple[int, ...]]] = {}

    @classmethod
    def of_graph(
        cls, graph: OnnxGraph, providers: Sequence[str], n_threads: int, cores: Sequence[int] = ()
    ) -> GraphSession:
        """`cores`: cores to pin the threads to, except the calling thread. Takes ownership of the graph's large arrays.

        Raises DeviceFailed if the runtime refuses the graph, DeviceUnavailable if the provider does not start,
        MemoryError.
        """
        options = _options(n_threads, cores)
        held = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in graph.large.items()}
        if held:
            options.add_external_initializers(list(held), list(held.values()))
        session = _started(graph.model().SerializeToString(), options, providers)
        graph.large.clear()  # the session has them in its own form
        held.clear()
        trim_heap()
        return cls(session)

    @classmethod
    def of_file(cls, path: Path, providers: Sequence[str], n_threads: int, cores: Sequence[int] = ()) -> GraphSession:
        """The graph in a file, with its weights there or beside it. Raises as `of_graph`."""
        return cls(_started(str(path), _options(n_threads, cores), providers))

    @property
    def inputs(self) -> tuple[Port, ...]:
        """The graph's inputs, in its own order."""
        return tuple(Port(each.name, each.type, tuple(each.shape)) for each in self._session.get_inputs())

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The graph's outputs, in its own order."""
        return tuple(Port(each.name, each.type, tuple(each.shape)) for each in self._session.get_outputs())

    def bind_input(self, name: str, array: NDArray[np.generic], shape: tuple[int, ...]) -> None:
        """Read an input from the beginning of an array, which is kept alive until the name is bound again."""
        if self._is_new(name, array, shape):
            self._binding.bind_input(name, HOST, 0, array.dtype.type, list(shape), array.ctypes.data)

    def bind_output(self, name: str, array: NDArray[np.generic], shape: tuple[int, ...]) -> None:
        """Write an output to the beginning of an array, which is kept alive until the name is bound again."""
        if self._is_new(name, array, shape):
            self._binding.bind_output(name, HOST, 0, array.dtype.type, list(shape), array.ctypes.data)

    def _is_new(self, name: str, array: NDArray[np.generic], shape: tuple[int, ...]) -> bool:
        """Whether a name is not yet bound like this; records the new binding."""
        held = self._bound.get(name)
        if held is not None and held[0] is array and held[1] == shape:
            return False
        self._bound[name] = array, shape
        return True

    def close(self) -> None:
        """Free the session and its memory."""
        del self._binding, self._session
        self._bound.clear()
        trim_heap()

    def run(self, options: onnxruntime.RunOptions | None = None) -> None:
        """Compute all outputs; `options` may end it early. Raises DeviceFailed, MemoryError."""
        try:
            self._session.run_with_iobinding(self._binding, options)
        except Exception as error:
            raise _judged(error, "ONNX Runtime failed while it ran the model") from error


def _started(
    model: bytes | str, options: onnxruntime.SessionOptions, providers: Sequence[str]
) -> onnxruntime.InferenceSession:
    try:
        session = onnxruntime.InferenceSession(model, options, providers=list(providers))
    except Exception as error:
        raise _judged(error, "ONNX Runtime cannot run this model") from error
    _require(providers[0], session.get_providers())
    return session


def _require(wanted: str, running: Sequence[str]) -> None:
    """Raises DeviceUnavailable if an installed provider did not start: the runtime would continue without it."""
    if wanted not in running:
        raise DeviceUnavailable(
            f"ONNX Runtime has {wanted}, but it did not start here: a driver or a library of it is missing; "
            "--device onnx runs on the CPU"
        )


def _options(n_threads: int, cores: Sequence[int]) -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = FATAL
    options.intra_op_num_threads = n_threads
    options.inter_op_num_threads = 1
    # Threads spin only while waiting for the next operator: not between steps, nor for long where others need the core.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    options.add_session_config_entry("session.intra_op.spin_duration_us", SPIN_US)
    if len(cores) > 1:
        places = ";".join(str(core + 1) for core in cores[1:])
        options.add_session_config_entry("session.intra_op_thread_affinities", places)
    return options


def _judged(error: Exception, what: str) -> EdgeInferError | MemoryError:
    """The exception callers expect: MemoryError or DeviceFailed."""
    text = str(error)
    if isinstance(error, MemoryError) or any(mark in text.lower() for mark in SHORT_OF_MEMORY):
        return MemoryError(text)
    return DeviceFailed(f"{what}: {text.strip()[:400]}")


LOOKS = 4
"""How often a run is checked within its time limit."""


class RunWatch:
    """Watches the runs of one session, one at a time. Must be closed."""

    def __init__(self, patience_s: float) -> None:
        self.patience_s = patience_s
        self._options = onnxruntime.RunOptions()
        self._until: float | None = None
        self._has_ended = False
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    @contextmanager
    def run(self) -> Iterator[onnxruntime.RunOptions]:
        """Wraps one run; yields its options. Raises DeviceFailed if the run was ended."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._look, name="onnx watch", daemon=True)
            self._thread.start()
        self._options.terminate, self._has_ended = False, False
        self._until = time.monotonic() + self.patience_s
        try:
            yield self._options
        except DeviceFailed:
            if not self._has_ended:
                raise
            raise DeviceFailed(f"the onnx device did not finish a step in {self.patience_s:.0f} s") from None
        finally:
            self._until = None

    def _look(self) -> None:
        while not self._closed.wait(self.patience_s / LOOKS):
            until = self._until
            if until is not None and time.monotonic() > until:
                self._options.terminate = self._has_ended = True

    def close(self) -> None:
        """End the thread; may be called twice."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
