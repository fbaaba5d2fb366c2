"""What an architecture reads: GGUF metadata under its own prefix, and the shapes of the tensors present.

In: a parsed header and the requested context length. Out: typed, range-checked values, with clear errors. Independent
of architectures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from edgeinfer.errors import BadGGUF
from edgeinfer.graph.operands import RowOrder, Weight
from edgeinfer.models.gguf import Metadata, TensorInfo
from edgeinfer.models.gguf.adapter import TRANSPOSED

COUNT_MAX = 1 << 31
"""Largest accepted size or count: every known model is far below it, and products of two stay exact."""

NUMBER_MAX = 1e30
"""Largest accepted factor, base or scale; with its inverse as the least above zero, nothing overflows."""


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """Metadata, tensors, and `n_context`: the context the model will run with (it selects LongRoPE factors).

    `guess`: which of the file's MTP blocks a head is built from.
    """

    metadata: Metadata
    tensors: Mapping[str, TensorInfo]
    n_context: int
    guess: int = 0

    @property
    def architecture(self) -> str:
        return self.metadata.text("general.architecture")

    @property
    def name(self) -> str:
        return self.metadata.text("general.name", self.architecture)

    def has(self, key: str) -> bool:
        """Whether the file has `<architecture>.<key>`."""
        return self._full(key) in self.metadata

    def flags(self, key: str) -> list[bool] | None:
        """The array `<architecture>.<key>` as one flag per entry, or None if it is not an array of numbers."""
        values = self.metadata.get(self._full(key))
        return [bool(value) for value in values] if isinstance(values, np.ndarray) else None

    def flag(self, key: str, *, default: bool) -> bool:
        """`<architecture>.<key>` as a truth value."""
        return self.metadata.flag(self._full(key), default)

    def integer(self, key: str, default: int | None = None, *, least: int = 1, most: int = COUNT_MAX) -> int:
        """`<architecture>.<key>` as an integer between `least` and `most`.

        Raises BadGGUF when it is out of range, of another type, or missing without a default.
        """
        full = self._full(key)
        value = self.metadata.integer(full) if default is None else self.metadata.integer(full, default)
        if not least <= value <= most:
            raise BadGGUF(f"{full} is {value}; it must be between {least} and {most}")
        return value

    def counts(self, key: str, n_layers: int, default: int | None = None, *, least: int = 1) -> tuple[int, ...]:
        """`<architecture>.<key>` for each layer: an array with one number per layer, or one number for all.

        0 is allowed in an array. Raises BadGGUF as `integer`, and for an array of another length.
        """
        values = self.metadata.get(self._full(key))
        if not isinstance(values, np.ndarray):
            return (self.integer(key, default, least=least),) * n_layers
        full = self._full(key)
        if len(values) != n_layers:
            raise BadGGUF(f"{full} has {len(values)} entries for {n_layers} layers")
        if not np.issubdtype(values.dtype, np.integer) or np.any(values < 0) or np.any(values > COUNT_MAX):
            raise BadGGUF(f"{full} must hold whole numbers between 0 and {COUNT_MAX}")
        return tuple(int(value) for value in values)

    def number(self, key: str, default: float | None = None, *, least: float = 0.0) -> float:
        """`<architecture>.<key>` as a float between `least` and NUMBER_MAX. Raises BadGGUF as `integer` does."""
        full = self._full(key)
        value = self.metadata.number(full) if default is None else self.metadata.number(full, default)
        if not least <= value <= NUMBER_MAX:
            raise BadGGUF(f"{full} is {value}; it must be a number between {least} and {NUMBER_MAX}")
        return value

    def numbers(self, full: str, count: int) -> tuple[float, ...]:
        """The key `full` for each of `count` layers, from an array or one number. Raises BadGGUF."""
        values = self.metadata.get(full)
        found = values if isinstance(values, np.ndarray) else np.full(count, self.metadata.number(full))
        if len(found) != count or not np.issubdtype(found.dtype, np.number):
            raise BadGGUF(f"{full} must hold a number for each of {count} layers")
        if not np.all(np.abs(found) <= NUMBER_MAX):  # nor if one is not a number
            raise BadGGUF(f"{full} must hold numbers between {-NUMBER_MAX} and {NUMBER_MAX}")
        return tuple(float(value) for value in found)

    def positive(self, key: str, default: float | None = None) -> float:
        """`<architecture>.<key>` as a float above zero. Raises BadGGUF as `integer` does."""
        return self.number(key, default, least=1.0 / NUMBER_MAX)

    def text(self, key: str, default: str) -> str:
        """`<architecture>.<key>` as a string."""
        return self.metadata.text(self._full(key), default)

    def matrix(
        self,
        name: str,
        shape: tuple[int, int],
        rows: tuple[int, int] | None = None,
        order: RowOrder | None = None,
    ) -> Weight:
        """Rows `start:stop` (None: all) of the 2-D tensor `name`. Raises BadGGUF if it is missing or not `shape`."""
        self._check(name, shape)
        start, stop = rows or (0, shape[0])
        return Weight(name, start, stop, shape[1], order)

    def turned(self, name: str, shape: tuple[int, int]) -> Weight:
        """The 2-D tensor `name`, stored transposed, as a matrix of `shape`. Raises BadGGUF as `matrix` does."""
        self._check(name, shape[::-1])
        return Weight(name + TRANSPOSED, 0, *shape)

    def stacked(self, name: str, count: int, shape: tuple[int, int]) -> tuple[Weight, ...]:
        """Each of the `count` matrices of the 3-D tensor `name`. Raises BadGGUF as `matrix` does."""
        self._check(name, (count, *shape))
        return tuple(Weight(name, at * shape[0], (at + 1) * shape[0], shape[1]) for at in range(count))

    def stacked_halves(
        self, name: str, count: int, shape: tuple[int, int]
    ) -> tuple[tuple[Weight, ...], tuple[Weight, ...]]:
        """The first and the last half of the rows of each of the `count` matrices of a 3-D tensor, each of `shape`."""
        n_rows, columns = shape
        self._check(name, (count, 2 * n_rows, columns))
        starts = [2 * at * n_rows for at in range(count)]
        first = tuple(Weight(name, start, start + n_rows, columns) for start in starts)
        return first, tuple(Weight(name, start + n_rows, start + 2 * n_rows, columns) for start in starts)

    def columns_of(self, name: str, columns: int) -> Weight:
        """The 2-D tensor `name` with this many columns and any number of rows. Raises BadGGUF as `matrix` does."""
        info = self.tensors.get(name)
        n_rows = info.shape[0] if info is not None and len(info.shape) == 2 else 1
        self._check(name, (n_rows, columns))
        return Weight(name, 0, n_rows, columns)

    def kernel(self, name: str, n_rows: int, columns: int) -> Weight:
        """The tensor `name`, a convolution's kernel of any number of dimensions, as a matrix. Raises BadGGUF."""
        info = self.tensors.get(name)
        shape = info.shape if info is not None and prod(info.shape) == n_rows * columns else (n_rows, columns)
        self._check(name, shape)
        return Weight(name, 0, n_rows, columns)

    def first_row(self, name: str, columns: int) -> Weight:
        """The first row of the 2-D tensor `name` as a vector. Raises BadGGUF as `matrix` does."""
        self.columns_of(name, columns)
        return Weight(name, 0, columns, 1)

    def row(self, name: str, length: int) -> Weight:
        """The tensor `name`, 1-D or with a single row, as a matrix. Raises BadGGUF as `matrix` does."""
        info = self.tensors.get(name)
        self._check(name, (1, length) if info is not None and len(info.shape) == 2 else (length,))
        return Weight(name, 0, 1, length)

    def vector(
        self, name: str, length: int, rows: tuple[int, int] | None = None, order: RowOrder | None = None
    ) -> Weight:
        """Elements `start:stop` (None: all) of the 1-D tensor `name`. Raises BadGGUF as `matrix` does."""
        self._check(name, (length,))
        start, stop = rows or (0, length)
        return Weight(name, start, stop, 1, order)

    def table(self, name: str, shape: tuple[int, int], order: RowOrder | None = None) -> Weight:
        """All numbers of the 2-D tensor `name` as one vector. Raises BadGGUF as `matrix` does."""
        self._check(name, shape)
        return Weight(name, 0, shape[0] * shape[1], 1, order)

    def flat(self, name: str, count: int) -> Weight:
        """All `count` numbers of a tensor of any shape as one vector. Raises BadGGUF as `matrix` does."""
        info = self.tensors.get(name)
        self._check(name, info.shape if info is not None and prod(info.shape) == count else (count,))
        return Weight(name, 0, count, 1)

    def bias(
        self, name: str, length: int, rows: tuple[int, int] | None = None, order: RowOrder | None = None
    ) -> Weight | None:
        """Like `vector`, or None if the file has no such tensor."""
        return self.vector(name, length, rows, order) if name in self.tensors else None

    def _full(self, key: str) -> str:
        return f"{self.architecture}.{key}"

    def _check(self, name: str, shape: tuple[int, ...]) -> None:
        info = self.tensors.get(name)
        if info is None:
            raise BadGGUF(
                f"the file has no tensor {name}, which {self.architecture} needs: it may be a part of a model"
            )
        if info.shape != shape:
            raise BadGGUF(f"{name} has shape {info.shape}; the sizes in the metadata make it {shape}")
