"""Products of many tokens by cuBLAS: tiles of weights unpacked to float16, multiplied, and added where they belong.

In: placed weights, rows of float32. Out: launches. Off unless EDGEINFER_CUDA_GEMM names a number of tokens from which
on it is used, because rows are then rounded to float16 instead of int8 and added in another order: keys and values of a
prompt that was read so differ in their last bits from those of one that was read in smaller passes, and what was
drafted and verified in a large pass from what was written token by token. A device with it says that it is not
batch-invariant. Numbers beyond 65504 overflow.
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
"""Bytes of unpacked weights at a time."""


class Multiply(Protocol):
    """products[T, N] = x[T, K] @ tile[N, K].T, on a stream; float16 in (as uint16 bits), float32 out."""

    def __call__(
        self, x: GpuArray, tile: GpuArray, products: GpuArray, sizes: tuple[int, int, int], stream: Stream
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class Gemm:
    """From how many tokens on products are left to `multiply`."""

    fewest: int
    multiply: Multiply


Rows: TypeAlias = tuple[GpuArray, int, int]
"""A buffer, its stride, and rows of a pass."""


def cublas() -> Multiply:
    """The product of CuPy. Raises DeviceUnavailable."""
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
    """One product of a tile, as a piece of work."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[[Stream], None]) -> None:
        self._call = call

    def start(self, stream: Stream) -> None:
        """Start it."""
        self._call(stream)


class LargeProducts:
    """Makes the launches of products of `fewest` tokens or more; owns the scratch memory for them."""

    def __init__(self, driver: Driver, layout: GpuBufferLayout, widths: list[tuple[int, int]], gemm: Gemm) -> None:
        """`widths`: rows and columns of every matrix."""
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
