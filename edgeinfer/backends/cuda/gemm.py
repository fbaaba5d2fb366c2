"""Products of many tokens by cuBLAS: weight tiles are unpacked to float16, multiplied, and added to the output.

In: placed weights, rows of float32. Out: launches. Used only if EDGEINFER_CUDA_GEMM sets the number of tokens from
which to use it, because rows are then rounded to float16 instead of int8 and summed in another order. So keys and
values differ in their last bits between a prompt read in large passes and one read in small passes, and between drafts
verified in a large pass and tokens decoded one by one. A device that uses it reports that it is not batch-invariant.
Numbers beyond 65504 overflow.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np

from edgeinfer.backends.cuda.driver import Driver, GpuArray, GpuLaunch, Startable, Stream
from edgeinfer.backends.cuda.layout import BLOCK, FloatForm, GpuBufferLayout, IntegerForm, padded
from edgeinfer.backends.cuda.placing import Placed
from edgeinfer.errors import DeviceUnavailable

TILE_BYTES = 64 << 20
"""Bytes of unpacked weights per tile."""


class Multiply(Protocol):
    """products[T, N] = x[T, K] @ tile[N, K].T, on a stream; float16 in (as uint16 bits), float32 out."""

    def __call__(
        self, x: GpuArray, tile: GpuArray, products: GpuArray, sizes: tuple[int, int, int], stream: Stream
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class Gemm:
    """The number of tokens from which products use `multiply`."""

    fewest: int
    multiply: Multiply


Rows: TypeAlias = tuple[GpuArray, int, int]
"""A buffer, its stride, and its rows in a pass."""


def cublas() -> Multiply:
    """CuPy's product. Raises DeviceUnavailable."""
    try:
        cupy = importlib.import_module("cupy")
    except ImportError:
        raise DeviceUnavailable(
            "EDGEINFER_CUDA_GEMM needs CuPy, which is not installed: pip install 'edgeinfer[cuda]'"
        ) from None

    def multiply(x: GpuArray, tile: GpuArray, products: GpuArray, sizes: tuple[int, int, int], stream: Stream) -> None:
        n_tokens, n_rows, n_columns = sizes
        with cupy.cuda.ExternalStream(int(stream)):  # type: ignore[call-overload]
            left = cupy.asarray(x)[: n_tokens * n_columns].view(cupy.float16).reshape(n_tokens, n_columns)
            right = cupy.asarray(tile)[: n_rows * n_columns].view(cupy.float16).reshape(n_rows, n_columns)
            out = cupy.asarray(products)[: n_tokens * n_rows].reshape(n_tokens, n_rows)
            out[...] = cupy.matmul(left, right.T)

    return multiply


class Multiplication:
    """The product of one tile, as a unit of work."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[[Stream], None]) -> None:
        self._call = call

    def start(self, stream: Stream) -> None:
        """Launch it."""
        self._call(stream)


class LargeProducts:
    """Builds the launches for products of at least `fewest` tokens; owns their scratch memory."""

    def __init__(self, driver: Driver, layout: GpuBufferLayout, widths: list[tuple[int, int]], gemm: Gemm) -> None:
        """`widths`: rows and columns of all matrices."""
        self.fewest, self._driver, self._multiply = gemm.fewest, driver, gemm.multiply
        most_tokens = layout.most_tokens
        columns = max(padded(width) for _, width in widths)
        rows = max(min(n_rows, self._tile_rows(width)) for n_rows, width in widths)
        largest = max(min(n_rows, self._tile_rows(width)) * padded(width) for n_rows, width in widths)
        self._x = driver.zeros(most_tokens * columns, np.uint16)
        self._tile = driver.zeros(largest, np.uint16)
        self._products = driver.zeros(most_tokens * rows, np.float32)

    @staticmethod
    def _tile_rows(columns: int) -> int:
        return max(1, TILE_BYTES // (2 * padded(columns)))

    @property
    def nbytes(self) -> int:
        return self._x.nbytes + self._tile.nbytes + self._products.nbytes

    def launches(self, placed: Placed, source: Rows, out: Rows, bias: GpuArray | None, mode: int) -> list[Startable]:
        """A product of `source`, whose stride is the padded width of the weights."""
        x, columns, n_tokens = source
        count = n_tokens * columns
        kernels, threads = self._driver.kernels, self._driver.sizes.threads
        halving = kernels.get("unpacking", "halving")
        found: list[Startable] = [GpuLaunch(halving, (-(-count // threads), 1, 1), (threads, 1), (x, self._x, count))]
        n_rows, step = placed.weight.n_rows, self._tile_rows(columns)
        settling = kernels.get("unpacking", "settling")
        target, stride, _ = out
        for first in range(0, n_rows, step):
            rows = min(step, n_rows - first)
            found.append(self._unpacking(placed, first, rows, columns))
            sizes = n_tokens, rows, columns
            found.append(Multiplication(self._call(sizes)))
            arguments = (self._products, target if bias is None else bias, target, first, rows, stride, mode)
            found.append(GpuLaunch(settling, (-(-rows // threads), n_tokens, 1), (threads, 1), arguments))
        return found

    def _call(self, sizes: tuple[int, int, int]) -> Callable[[Stream], None]:
        return lambda stream: self._multiply(self._x, self._tile, self._products, sizes, stream)

    def _unpacking(self, placed: Placed, first: int, n_rows: int, columns: int) -> GpuLaunch:
        """Rows of a weight as float16."""
        form, kernels, threads = placed.form, self._driver.kernels, self._driver.sizes.threads
        arguments: tuple[object, ...]
        if isinstance(form, IntegerForm):
            kernel, count = kernels.get("unpacking", "integer_halves", *form.constants), columns // BLOCK
            arguments = (*placed.integer_arrays(), self._tile, first, n_rows, count)
        else:
            assert isinstance(form, FloatForm)
            kernel, count = kernels.get("unpacking", "float_halves", form.kind), columns // 8
            arguments = (placed.region("codes"), self._tile, first, n_rows, count)
        return GpuLaunch(kernel, (-(-n_rows * count // threads), 1, 1), (threads, 1), arguments)
