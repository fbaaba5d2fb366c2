"""Access to one GPU: memory, streams, events, compiled kernels, recorded graphs, by Numba CUDA or its simulator.

In: sizes, and functions that launch a step's kernels. Out: arrays on the GPU, pinned arrays on the host, kernels
compiled once per set of constants, steps recorded as CUDA graphs, which the driver launches in one call. If cuda-python
is missing, under the simulator, or if recording fails, nothing is recorded and kernels are launched one by one. Driver
errors are raised as edgeinfer's own error classes. Imported only once Numba CUDA is known to be installed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numba import cuda
from numba.cuda import config
from numba.cuda.cudadrv.driver import CudaAPIError, device_memset
from numba.cuda.cudadrv.error import CudaSupportError
from numpy.typing import DTypeLike, NDArray

from edgeinfer.backends.cuda.kernels import intrinsics
from edgeinfer.errors import DeviceUnavailable, DoesNotFit


def _failures() -> tuple[type[Exception], ...]:
    """What Numba raises for driver errors; newer versions launch kernels through cuda.core."""
    found: tuple[type[Exception], ...] = (CudaAPIError, CudaSupportError)
    try:
        return (*found, importlib.import_module("cuda.core._utils.cuda_utils").CUDAError)
    except (ImportError, AttributeError):
        return found


FAILURES = _failures()


class GpuArray(Protocol):
    """A flat array in GPU memory."""

    @property
    def nbytes(self) -> int: ...

    def __getitem__(self, part: slice) -> GpuArray: ...

    def view(self, dtype: DTypeLike) -> GpuArray: ...

    def copy_to_host(self, ary: NDArray[np.generic], stream: object = ...) -> object: ...

    def copy_to_device(self, ary: NDArray[np.generic], stream: object = ...) -> None: ...


class Stream(Protocol):
    """A queue of work on the GPU."""

    def synchronize(self) -> None: ...


class Event(Protocol):
    """A marker in a stream."""

    def record(self, stream: Stream) -> None: ...

    def wait(self, stream: Stream) -> None: ...

    def synchronize(self) -> None: ...

    def elapsed_time(self, event: Event) -> float:
        """Milliseconds from this event to another; negative if nothing was timed."""
        ...


class GpuKernel(Protocol):
    """A compiled kernel: kernel[grid, block, stream](*arguments) launches it."""

    def __getitem__(self, configuration: tuple[object, ...]) -> Callable[..., None]: ...


class BlockSizes(NamedTuple):
    """Block sizes: lanes of a warp, warps per row of a norm, threads per block of independent threads."""

    lanes: int
    norm_warps: int
    threads: int


class Startable(Protocol):
    """A unit of work for the GPU."""

    def start(self, stream: Stream) -> None: ...


class Kernels:
    """The kernels of a device, compiled on first use."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, tuple[object, ...]], GpuKernel] = {}

    def get(self, module: str, factory: str, *constants: object) -> GpuKernel:
        """The kernel that `factory` of kernels.`module` compiles for these constants."""
        key = (f"{module}.{factory}", constants)
        if key not in self._made:
            found = importlib.import_module(f"edgeinfer.backends.cuda.kernels.{module}")
            self._made[key] = getattr(found, factory)(*constants)
        return self._made[key]


def require_compiler() -> None:
    """Raises DeviceUnavailable if the libraries that compile kernels are missing."""
    pathfinder = importlib.import_module("cuda.pathfinder")
    for library in ("nvvm", "nvrtc"):
        try:
            pathfinder.load_nvidia_dynamic_lib(library)
        except pathfinder.DynamicLibNotFoundError:
            raise DeviceUnavailable(
                f"NVIDIA's library {library}, which compiles the cuda device's kernels, is not found: "
                "pip install 'edgeinfer[cuda]', or install a CUDA toolkit"
            ) from None


class Driver:
    """One GPU. `number` is its index in the driver's list."""

    simulated = bool(config.ENABLE_CUDASIM)

    def __init__(self, number: int = 0) -> None:
        self._number = number
        config.CUDA_LOW_OCCUPANCY_WARNINGS = 0  # small kernels are intended
        try:
            found = len(cuda.gpus)
            if not 0 <= number < found:
                raise DeviceUnavailable(f"the driver lists {found} GPUs, numbered from 0; there is no cuda:{number}")
            cuda.select_device(number)
            self.name = self._name()
        except FAILURES as error:
            said = " ".join(str(error).split()).rstrip(" :")
            raise DeviceUnavailable(
                f"no NVIDIA GPU can be used ({said}); the cuda device needs one with its driver; the device cpu runs "
                "anywhere"
            ) from None
        if not self.simulated:
            require_compiler()
        self.kernels = Kernels()
        self.sizes = BlockSizes(intrinsics.LANES, intrinsics.NORM_WARPS, intrinsics.THREADS)

    def _name(self) -> str:
        if self.simulated:
            return "simulator"
        name = cuda.get_current_device().name
        return name.decode() if isinstance(name, bytes) else str(name)

    def enter(self) -> None:
        """Make this GPU current for the calling thread."""
        cuda.select_device(self._number)

    def free_bytes(self) -> int | None:
        """Bytes of free GPU memory; None if unknown."""
        if self.simulated:
            return None
        return int(cuda.current_context().get_memory_info().free)

    def zeros(self, count: int, dtype: DTypeLike) -> GpuArray:
        """A flat array of zeros. Raises DoesNotFit."""
        array = self.empty(max(1, count), dtype)
        device_memset(array, 0, array.nbytes)
        return array

    def empty(self, count: int, dtype: DTypeLike) -> GpuArray:
        """An uninitialised flat array. Raises DoesNotFit."""
        n_bytes = count * np.dtype(dtype).itemsize
        try:
            array: GpuArray = cuda.device_array(count, dtype)
        except FAILURES as error:
            if "MEMORY" not in str(error).upper():
                raise
            raise DoesNotFit(
                f"{self.name} has no {n_bytes} bytes of memory left; use a smaller context, or set EDGEINFER_CUDA_VRAM "
                "to fewer bytes, so that weights are streamed"
            ) from None
        return array

    def pinned(self, shape: int | tuple[int, ...], dtype: DTypeLike) -> NDArray[np.generic]:
        """Zeroed pinned memory on the host, which the GPU copies directly."""
        array: NDArray[np.generic] = cuda.pinned_array(shape, dtype)
        array[...] = 0
        return array

    def stream(self) -> Stream:
        made: Stream = cuda.stream()
        return made

    def event(self) -> Event:
        made: Event = cuda.event()
        return made

    def launch(self, launches: Sequence[Startable], stream: Stream) -> None:
        """Launch kernels and products, one after the other."""
        for launch in launches:
            launch.start(stream)


class Series:
    """Several units of work, one after the other."""

    __slots__ = ("_parts",)

    def __init__(self, parts: Sequence[Startable]) -> None:
        self._parts = parts

    def start(self, stream: Stream) -> None:
        """Launch them."""
        for part in self._parts:
            part.start(stream)


class GpuLaunch:
    """A kernel with its grid (x, y, z), block (x, y) and arguments."""

    __slots__ = ("arguments", "block", "grid", "kernel")

    def __init__(
        self, kernel: GpuKernel, grid: tuple[int, int, int], block: tuple[int, int], arguments: tuple[object, ...]
    ) -> None:
        self.kernel, self.grid, self.block, self.arguments = kernel, grid, block, arguments

    def start(self, stream: Stream) -> None:
        """Launch it, unless its grid is empty."""
        if 0 not in self.grid:
            self.kernel[self.grid, self.block, stream](*self.arguments)


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
