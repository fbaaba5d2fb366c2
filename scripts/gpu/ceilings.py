"""Measures the card's limits: copies on it and to it, multiply-adds of floats and of bytes, cuBLAS.

In: an open device. Out: bytes and operations per second. Does not depend on models.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from edgeinfer.backends.cuda.device import CudaDevice
from edgeinfer.backends.cuda.driver import Recorder
from gpu.sizes import Size


@dataclass(frozen=True, slots=True)
class Ceilings:
    """The card's limits: bytes per second of a copy on the card (read and written) and of the link.

    `dot_s`, `fma_s`, `gemm_s`: operations per second; `gemm_s`: of a large float16 product of cuBLAS, None without
    CuPy.
    """

    copy_s: float
    link_s: float
    dot_s: float
    fma_s: float
    gemm_s: float | None


def measured(device: CudaDevice, size: Size) -> Ceilings:
    """Measure all limits."""
    return Ceilings(
        _copy(device, size), _link(device, size), _arithmetic(device, size, "dots"),
        _arithmetic(device, size, "fmas"), _gemm(size),
    )  # fmt: skip


def seconds_of(device: CudaDevice, start: Callable[[], None], stream: object, repeats: int) -> float:
    """GPU seconds of the work that `start` enqueues, replayed from a recorded graph if there is one."""
    start()
    stream.synchronize()  # type: ignore[attr-defined]
    graph = Recorder(device.driver).record(start, stream)  # type: ignore[arg-type]
    again = start if graph is None else lambda: graph.launch(stream)  # type: ignore[arg-type]
    again()
    marks = device.driver.event(), device.driver.event()
    began = time.perf_counter()
    marks[0].record(stream)  # type: ignore[arg-type]
    for _ in range(repeats):
        again()
    marks[1].record(stream)  # type: ignore[arg-type]
    stream.synchronize()  # type: ignore[attr-defined]
    timed = marks[0].elapsed_time(marks[1]) / 1e3
    return (timed if timed > 0 else time.perf_counter() - began) / repeats


def _copy(device: CudaDevice, size: Size) -> float:
    driver, stream = device.driver, device.driver.stream()
    source, target = (driver.zeros(size.copied_bytes, np.uint8) for _ in range(2))

    def start() -> None:
        target.copy_to_device(source, stream=stream)  # type: ignore[arg-type]

    return 2 * size.copied_bytes / seconds_of(device, start, stream, size.repeats)


def _link(device: CudaDevice, size: Size) -> float:
    """Copy from pinned host memory, as streamed weights are sent."""
    driver, stream, n_bytes = device.driver, device.driver.stream(), max(4096, size.copied_bytes // 4)
    host, target = driver.pinned(n_bytes, np.uint8), driver.zeros(n_bytes, np.uint8)
    return n_bytes / seconds_of(
        device, lambda: target.copy_to_device(host, stream=stream), stream, max(1, size.repeats // 4)
    )


def _arithmetic(device: CudaDevice, size: Size, kind: str) -> float:
    """Operations per second of a kernel that does nothing else; a multiply-add counts as two."""
    from gpu import chains

    threads, driver = device.driver.sizes.threads, device.driver
    out, stream = driver.zeros(size.n_blocks * threads, np.float32), driver.stream()
    kernel = {"dots": chains.dots, "fmas": chains.fmas}[kind]
    seconds = seconds_of(
        device, lambda: kernel[size.n_blocks, threads, stream](out, size.n_rounds), stream, size.repeats
    )
    return 2 * chains.CHAINS * (4 if kind == "dots" else 1) * size.n_rounds * size.n_blocks * threads / seconds


def _gemm(size: Size) -> float | None:
    """A product of 8192 x 8192 matrices."""
    try:
        import cupy
    except ImportError:
        return None
    width = 8192
    first, second = (cupy.ones((width, width), cupy.float16) for _ in range(2))
    first @ second
    cupy.cuda.Device().synchronize()
    began = time.perf_counter()
    for _ in range(size.repeats):
        first @ second
    cupy.cuda.Device().synchronize()
    return 2 * width**3 * size.repeats / (time.perf_counter() - began)
