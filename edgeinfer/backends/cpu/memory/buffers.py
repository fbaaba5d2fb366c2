"""The buffers of one model's passes, their int8 forms, and vectors of weights.

In: a ModelSpec, a GGUF file, limits and the step record. Out: addresses and strides for argument records, and copies of
values for tests. Of kernels it knows only the layout of rounded activations.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends import weights
from edgeinfer.backends.base import Limits
from edgeinfer.backends.cpu.layout.padding import LANES, BufferLayout, PaddedHeads, heads_of, padded
from edgeinfer.backends.cpu.layout.rounded import RECORD_BYTES, read_records
from edgeinfer.backends.cpu.memory.packed_buffers import PackedBuffers
from edgeinfer.backends.cpu.memory.step import StepRecord
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.operands import Rows, Weight
from edgeinfer.graph.step import Floats
from edgeinfer.jit.memory import address, aligned, give_back
from edgeinfer.models.gguf import GGUFFile

INT8 = " int8"
"""Follows the name of a buffer in that of its int8 form."""


class CpuBuffers:
    """Owns the memory that calls read and write between ops."""

    def __init__(
        self,
        spec: ModelSpec,
        file: GGUFFile,
        limits: Limits,
        step: StepRecord,
        n_workers: int,
        tiled: bool,
    ) -> None:
        """`tiled`: whether the CPU has tile registers."""
        self._spec, self._file, self._step, self._n_workers = spec, file, step, n_workers
        self._tiled = tiled
        self.heads, self.layout = heads_of(spec), BufferLayout(spec, file.tensors, limits)
        self._rows = {buffer.name: buffer.rows for buffer in spec.buffers}
        self._adapters = {buffer.name: buffer.adapter for buffer in spec.buffers if buffer.adapter is not None}
        self._packed, self._memory = PackedBuffers.of(spec, self.layout), aligned((0,), np.uint8)
        self.arrays: dict[str, Floats] = self._allocated()
        self._rounded: dict[str, NDArray[np.uint8]] = {}
        self._own_rounded: dict[str, NDArray[np.uint8]] = {}  # one row, with a copy for each worker
        self._vectors: dict[tuple[Weight, int], Floats] = {}
        self._spread: dict[Weight, Floats] = {}
        self._constants: dict[tuple[float, int], Floats] = {}
        self._ones: dict[tuple[int | PaddedHeads, int], Floats] = {}
        self.zeros: Floats = aligned((2 * LANES,), np.float32)

    def _allocated(self) -> dict[str, Floats]:
        """The rows of all buffers, float32[most rows, padded width] each, some of which share memory."""
        packed, names = self._packed, [buffer.name for buffer in self._spec.buffers]
        if packed is not None:
            self._memory = memory = aligned((packed.n_bytes,), np.uint8)
            return {name: _rows(memory[packed.ranges[name].start :], self.layout.shape(name)) for name in names}
        memories = {name: aligned((size,), np.uint8) for name, size in self.layout.float_bytes.items()}
        return {name: _rows(memories[self.layout.place(name)], self.layout.shape(name)) for name in names}

    @property
    def resident_bytes(self) -> int:
        """Bytes of buffers and their int8 forms."""
        packed, rounded = self._packed, sum(array.nbytes for array in self._rounded.values())
        return rounded + (sum(self.layout.float_bytes.values()) if packed is None else packed.n_bytes)

    def give_back(self) -> None:
        """Give the memory of buffers that share it back to the system until it is written again."""
        give_back(self._memory)

    def pieces(self, name: str) -> frozenset[str]:
        """Names of the memory behind the name of a buffer, or of its int8 form ("… int8"), as calls have them.

        Names that are neither stay as they are.
        """
        buffer = name.removesuffix(INT8)
        if self._packed is not None and buffer == name and name in self._rows:
            return self._packed.pieces(name)
        return frozenset({self.layout.place(buffer) + name.removeprefix(buffer)})

    @property
    def any_shared(self) -> bool:
        """Whether some buffers share memory."""
        return self._packed is not None or bool(self.layout.places)

    def shared_as(self, name: str) -> str | None:
        """What tells a buffer, or its int8 form, from the others in the same memory; None if it has its own."""
        buffer = name.removesuffix(INT8)
        if self._packed is not None and buffer == name and name in self._rows:
            return name if self._packed.shares(name) else None
        return buffer.removeprefix(self.layout.place(buffer)) if buffer in self.layout.places else None

    def at(self, name: str) -> tuple[int, int]:
        """Address of a buffer and bytes between its rows."""
        return address(self.arrays[name]), int(self.arrays[name].strides[0])

    def count(self, name: str) -> int:
        """Address of the number of rows that a buffer has in a step."""
        if name in self._adapters:
            return address(self._step.adapters.counts[self._rows[name]]) + 8 * self._adapters[name]
        return self._step.n_tokens_at if self._rows[name] is Rows.TOKENS else self._step.n_outputs_at

    def rows(self, name: str) -> Rows:
        """Whether a buffer has a row for each token or for each output."""
        return self._rows[name]

    def tiled(self, name: str) -> bool:
        """Whether a buffer's int8 form is cut into tiles for tile registers."""
        return self._tiled and self._rows[name] is Rows.TOKENS

    def n_rows(self, name: str) -> int:
        """Rows that a buffer has in the present step."""
        field = "n_tokens" if self._rows[name] is Rows.TOKENS else "n_outputs"
        return int(self._step.record[field][0])

    def vector(self, weight: Weight, length: int, heads: PaddedHeads | None = None) -> Floats:
        """A 1-D weight, zero-padded (per head if rows are cut into heads)."""
        if (weight, length) not in self._vectors:
            values = weights.vector(self._file, weight)
            vector: Floats = aligned((length,), np.float32)
            if heads is None or len(values) == heads.width:
                vector[: len(values)] = values
            else:
                vector[heads.places(len(values))] = values
            self._vectors[weight, length] = vector
        return self._vectors[weight, length]

    def repeated(self, weight: Weight, times: int, length: int) -> Floats:
        """A 1-D weight with each number that many times in a row, zero-padded."""
        if times == 1:
            return self.vector(weight, length)
        if weight not in self._spread:
            values: Floats = aligned((length,), np.float32)
            found = np.repeat(weights.vector(self._file, weight), times)
            values[: len(found)] = found
            self._spread[weight] = values
        return self._spread[weight]

    def tiles(self, weight: Weight, width: int, n_rows: int) -> Floats:
        """A weight of `n_rows` numbers for each of `width` columns, by tiles: float32[width / 16, n_rows, 16]."""
        if weight not in self._spread:
            values = weights.vector(self._file, weight).reshape(-1, LANES, n_rows)
            tiles: Floats = aligned((width // LANES, n_rows, LANES), np.float32)
            tiles[:] = values.swapaxes(1, 2)
            self._spread[weight] = tiles
        return self._spread[weight]

    def norm_vector(self, weight: Weight | None, width: int, length: int, heads: PaddedHeads | None = None) -> Floats:
        """The factors of an RMSNorm over `width` columns: `vector` of its weight, or ones if it has none."""
        if weight is not None:
            return self.vector(weight, length, heads)
        key = length if heads is None else heads, width
        if key not in self._ones:
            ones: Floats = aligned((length,), np.float32)
            ones[slice(width) if heads is None or width == heads.width else heads.places(width)] = 1.0
            self._ones[key] = ones
        return self._ones[key]

    def constant(self, value: float, length: int) -> Floats:
        """A vector of one repeated number, for norms without a weight or a bias."""
        if (value, length) not in self._constants:
            vector: Floats = aligned((length,), np.float32)
            vector[:] = value
            self._constants[value, length] = vector
        return self._constants[value, length]

    def rounded_at(self, name: str, own: bool) -> tuple[int, int]:
        """Address of a buffer's int8 form and bytes between the copies of two workers, 0 if there is one for all."""
        place = self.layout.place(name)
        if place not in self._rounded:
            self._rounded[place] = aligned(
                (self.layout.int8_bytes.get(place) or self.layout.rounded_bytes(name),), np.uint8
            )
        if name not in self._own_rounded:
            own_bytes = padded(self.layout.padded_blocks(name) * RECORD_BYTES, 4096)
            self._own_rounded[name] = aligned((self._n_workers, own_bytes), np.uint8)
        if own:
            return address(self._own_rounded[name]), int(self._own_rounded[name].strides[0])
        return address(self._rounded[place]), 0

    def value(self, name: str) -> Floats:
        """A copy of a buffer's rows, without padding: float32[n_rows, width]."""
        n_rows = self.n_rows(name)
        width, heads, values = self._spec.buffer(name).width, self.heads.get(name), self.arrays[name][:n_rows]
        if heads is not None:
            values = values[:, : heads.count * heads.padded].reshape(n_rows, heads.count, heads.padded)
            values = values[..., : heads.width].reshape(n_rows, -1)
        return values[:, :width].copy()

    def rounded(self, name: str) -> Floats:
        """The values that the int8 form of a buffer's rows represents: float32[n_rows, width]."""
        n_padded = self.layout.padded_blocks(name)
        held = self._rounded[self.layout.place(name)]
        values: Floats = read_records(held, self.n_rows(name), n_padded, self.tiled(name))
        return values[:, : self._spec.buffer(name).width]


def _rows(memory: NDArray[np.uint8], shape: tuple[int, int]) -> Floats:
    """The first bytes of memory as rows of float32."""
    rows: Floats = memory[: 4 * shape[0] * shape[1]].view(np.float32).reshape(shape)
    return rows
