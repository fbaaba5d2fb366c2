"""The reference device: every op in plain NumPy, written as its formula. The oracle for all other devices.

In: a ModelSpec, a GGUF file, steps. Out: logits. Weights are dequantised to float32 once. `activations="int8"` rounds
the inputs of products with quantised weights as integer devices do (per 32, scale = max / 127), or as `rounding`
defines, which may replay another device's rounding. `kv="f16"` rounds keys and values like a float16 cache,
another kind as its forms say, and queries likewise. Not optimised for speed.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends import weights
from edgeinfer.backends.base import DeviceKind, DeviceOptions, Footprint, Limits
from edgeinfer.backends.capabilities import DeviceCapabilities, LaneCapabilities
from edgeinfer.backends.meanings import FORMS, rotated, round_activations, round_cached, round_queries
from edgeinfer.backends.reference_states import ReferenceStates
from edgeinfer.graph.graph import Fragment, ModelSpec
from edgeinfer.graph.op import Op
from edgeinfer.graph.operands import Rows, Weight
from edgeinfer.graph.ops.rope import Rope
from edgeinfer.graph.rotary import RopeSections, RopeTable
from edgeinfer.graph.step import PAGE, Floats, Int32s, Step
from edgeinfer.models import rope
from edgeinfer.models.gguf import GGUFFile, TensorInfo
from edgeinfer.models.quants import BlockFormat, format_of
from edgeinfer.settings import KVKind
from edgeinfer.steps import Progress, no_progress

Rounding: TypeAlias = Callable[[Op, str, Floats], Floats]
"""What an op reads in place of a buffer: (op, buffer, float32[n, width]) -> the same shape, rounded.

Called for the rows that products read, and for keys, values and queries of the cache.
"""


class ReferenceDevice:
    """NumPy on the calling thread."""

    name = "reference"
    batch_invariant = False  # BLAS sums in an order that depends on the batch

    def __init__(
        self,
        activations: Literal["f32", "int8"] = "f32",
        kv: Literal["f32"] | KVKind | None = None,
        rounding: Rounding | None = None,
    ) -> None:
        self._activations = activations
        self._kv = kv
        self._rounding = rounding
        self._lane: Callable[[], ReferenceLane | None] = lambda: None

    @property
    def capabilities(self) -> DeviceCapabilities:
        return DeviceCapabilities(fragments=self, reading=self)

    def compile(
        self, spec: ModelSpec, file: GGUFFile, limits: Limits, progress: Progress = no_progress
    ) -> ReferenceLane:
        """Dequantise the weights and allocate the cache."""
        kv = self._kv or ("f32" if limits.kv == "f16" else limits.kv)
        lane = ReferenceLane(spec, file, limits, self._activations == "int8", kv, self._rounding, progress)
        self._lane = weakref.ref(lane)
        return lane

    def compile_reader(
        self, spec: ModelSpec, file: GGUFFile, limits: Limits, progress: Progress = no_progress
    ) -> ReferenceLane:
        """As `ReadingDevice.compile_reader`."""
        owner = self._lane()
        assert owner is not None
        lane = self.compile(spec, file, limits, progress)
        self._lane = weakref.ref(owner)
        lane.keys, lane.cached_values = owner.keys, owner.cached_values
        lane.limited, lane.windows = owner.limited, owner.windows
        return lane

    def compile_fragment(
        self, fragment: Fragment, file: GGUFFile, limits: Limits, progress: Progress = no_progress
    ) -> ReferenceFragment:
        """The same for part of a model."""
        return ReferenceFragment(self.compile(fragment.spec, file, limits, progress), fragment.outputs)

    def close(self) -> None:
        """Nothing to release."""


class ReferenceLane:
    """A whole model in NumPy."""

    def __init__(
        self,
        spec: ModelSpec,
        file: GGUFFile,
        limits: Limits,
        int8_activations: bool,
        kv: Literal["f32"] | KVKind,
        rounding: Rounding | None,
        progress: Progress,
    ) -> None:
        self._spec = spec
        self.int8, self.kv, self.rounding = int8_activations, kv, rounding
        self.forms = None if kv == "f32" else FORMS[kv]
        self.matrices: dict[Weight, Floats] = {}
        self.vectors: dict[Weight, Floats] = {}
        self.is_quantised: dict[Weight, bool] = {}
        self.rotations: dict[RopeTable, tuple[Floats, Floats]] = {}
        self._last: dict[str, Floats] = {}
        self._load(file, limits, progress)
        kv_type = np.float16 if kv == "f16" else np.float32
        self.limited = [limits.windows is not None and limits.windows.limit(kv) for kv in spec.kv]
        sizes = [(PAGE * n, kept) for n, kept in zip(self._layer_pages(limits), spec.kv, strict=True)]
        self.keys = [np.zeros((n, kept.kv_heads, kept.key_width), kv_type) for n, kept in sizes]
        self.cached_values = [np.zeros((n, kept.kv_heads, kept.value_width), kv_type) for n, kept in sizes]
        self.windows = ReferenceWindows(self, limits.n_pages) if any(self.limited) else None
        n_states = limits.state_slots(spec.states)
        self.states = ReferenceStates(spec.states, n_states) if n_states else None

    def _layer_pages(self, limits: Limits) -> Iterator[int]:
        """Pages per layer."""
        for is_limited in self.limited:
            yield limits.windows.n_pages if limits.windows is not None and is_limited else limits.n_pages

    def _load(self, file: GGUFFile, limits: Limits, progress: Progress) -> None:
        all_weights, matrices = list(dict.fromkeys(self._spec.weights())), set(self._spec.matrices())
        for done, weight in enumerate(all_weights):
            if weight in matrices:
                self.matrices[weight] = weights.matrix(file, weight)
                form = format_of(file.tensors[weight.tensor].ggml_type)
                self.is_quantised[weight] = isinstance(form, BlockFormat)
            else:
                self.vectors[weight] = weights.vector(file, weight)
            progress("loading weights", done + 1, len(all_weights))
        for table in {op.table for op in self._spec.ops() if isinstance(op, Rope)}:
            factors = weights.rope_factors(file, table)
            self.rotations[table] = rope.rotations(table, limits.n_context, factors)

    @property
    def capabilities(self) -> LaneCapabilities:
        return LaneCapabilities(self.states, self.windows, buffers=self, scales=True, budgets=True)

    @property
    def resident_bytes(self) -> int:
        arrays = [*self.matrices.values(), *self.vectors.values(), *self.keys, *self.cached_values]
        return sum(array.nbytes for array in arrays) + (0 if self.states is None else self.states.nbytes)

    def run(self, step: Step) -> Floats:
        """Evaluate one step: float32[O, V]."""
        self._last = self.values(step, {})
        return self._last[self._spec.logits]

    def value(self, name: str) -> Floats:
        """A copy of a buffer's rows after the last run: float32[T or O, width]."""
        return self._last[name].copy()

    def values(self, step: Step, inputs: Mapping[str, Floats]) -> dict[str, Floats]:
        """The contents of all buffers after one step that starts with these inputs."""
        values: dict[str, Floats] = {}
        for buffer in self._spec.buffers:
            n_rows = len(step.batch.tokens) if buffer.rows is Rows.TOKENS else len(step.batch.outputs)
            values[buffer.name] = np.zeros((n_rows, buffer.width), np.float32)
        values.update({name: given.copy() for name, given in inputs.items()})
        context = _Pass(self, step, values)
        for op in self._spec.ops():
            op.evaluate(context)
        return values

    def copy_slots(self, sources: Int32s, targets: Int32s) -> None:
        """Copy keys and values of slots in all layers."""
        for layer, arrays in enumerate(zip(self.keys, self.cached_values, strict=True)):
            for array in arrays:
                array[self.located(layer, targets)] = array[self.located(layer, sources)]

    def located(self, layer: int, slots: NDArray[np.integer[Any]]) -> NDArray[np.integer[Any]]:
        """Where a layer stores these slots."""
        if self.windows is None or not self.limited[layer]:
            return slots
        places: NDArray[np.integer[Any]] = self.windows.places[slots // PAGE] * PAGE + slots % PAGE
        return places

    def read_pages(self, pages: Int32s) -> NDArray[np.uint8]:
        """Contents of pages, without window layers: uint8[len(pages), page_bytes]."""
        return _read(self.cached(limited=False), pages)

    def write_pages(self, pages: Int32s, contents: NDArray[np.uint8]) -> None:
        """Restore the contents of pages."""
        _write(self.cached(limited=False), pages, contents)

    def cached(self, *, limited: bool) -> list[NDArray[Any]]:
        """Keys and values of layers with a window, or of all others."""
        layers = [layer for layer, is_limited in enumerate(self.limited) if is_limited is limited]
        return [array[layer] for array in (self.keys, self.cached_values) for layer in layers]

    def close(self) -> None:
        """Drop the arrays."""
        self.matrices, self.vectors, self.keys, self.cached_values = {}, {}, [], []


class ReferenceWindows:
    """Layers with a window. `places`: where each page is stored in them."""

    def __init__(self, lane: ReferenceLane, n_pages: int) -> None:
        self._lane, self.places = lane, np.zeros(n_pages, np.int32)

    @property
    def page_bytes(self) -> int:
        """Bytes of a page."""
        return int(_read(self._lane.cached(limited=True), np.zeros(1, np.int32)).shape[1])

    def assign(self, pages: Int32s, places: Int32s) -> None:
        """Store pages at these places from now on."""
        self.places[pages] = places

    def read(self, pages: Int32s) -> NDArray[np.uint8]:
        """Contents of pages that have a place: uint8[len(pages), page_bytes]."""
        return _read(self._lane.cached(limited=True), self.places[pages])

    def write(self, pages: Int32s, contents: NDArray[np.uint8]) -> None:
        """Restore what `read` returned."""
        _write(self._lane.cached(limited=True), self.places[pages], contents)


def _read(arrays: Sequence[NDArray[Any]], pages: Int32s) -> NDArray[np.uint8]:
    """Pages of caches: uint8[len(pages), page_bytes]."""
    parts = [_paged(array)[pages].reshape(len(pages), -1) for array in arrays]
    if not parts:
        return np.zeros((len(pages), 0), np.uint8)
    return np.ascontiguousarray(np.concatenate(parts, axis=1)).view(np.uint8)


def _write(arrays: Sequence[NDArray[Any]], pages: Int32s, contents: NDArray[np.uint8]) -> None:
    """Restore what `_read` returned."""
    start = 0
    for array in arrays:
        paged, numbers = _paged(array), np.ascontiguousarray(contents).view(array.dtype)
        width = paged[0].size
        paged[pages] = numbers[:, start : start + width].reshape(len(pages), *paged.shape[1:])
        start += width


def _paged(array: NDArray[Any]) -> NDArray[Any]:
    return array.reshape(-1, PAGE, *array.shape[1:])


class _Pass:
    """The environment in which op meanings are evaluated, for one step."""

    def __init__(self, lane: ReferenceLane, step: Step, values: dict[str, Floats]) -> None:
        self.step, self.values, self._lane = step, values, lane
        self.visible_slots: Sequence[NDArray[np.int64]] = [
            step.context_slots(token) for token in range(len(step.batch.tokens))
        ]

    def matrix(self, weight: Weight) -> Floats:
        return self._lane.matrices[weight]

    def vector(self, weight: Weight) -> Floats:
        return self._lane.vectors[weight]

    def rotations(self, table: RopeTable, sections: RopeSections | None) -> tuple[Floats, Floats]:
        (cosines, sines), batch = self._lane.rotations[table], self.step.batch
        if sections is None or batch.axes is None:
            return cosines[batch.positions], sines[batch.positions]
        positions, pairs = batch.axes[:, sections.axes()], np.arange(cosines.shape[1])
        return cosines[positions, pairs], sines[positions, pairs]

    def rounds(self, weight: Weight) -> bool:
        return self._lane.int8 and self._lane.is_quantised[weight]

    def rounded(self, op: Op, name: str, rows: Floats) -> Floats:
        return round_activations(rows) if self._lane.rounding is None else self._lane.rounding(op, name, rows)

    def kept(self, op: Op, name: str, head_width: int, *, is_key: bool) -> Floats:
        rows, forms = self._met(op, name), self._lane.forms
        if forms is None:
            return rows
        return round_cached(rows.reshape(-1, head_width), forms[0 if is_key else 1]).reshape(rows.shape)

    def queried(self, op: Op, name: str, scale: float, head_width: int) -> Floats:
        rows = self._met(op, name)
        scaled = rows.reshape(-1, head_width) * np.float32(scale)
        return (scaled if self._lane.forms is None else round_queries(scaled)).reshape(rows.shape)

    def summarised(self, rows: Floats) -> Floats:
        return rows if self._lane.forms is None else rotated(rows)

    def scored(self, op: Op, name: str) -> Floats:
        rows, rounding = self.values[name], self._lane.rounding
        return rows if rounding is None else rounding(op, name, rows)

    def _met(self, op: Op, name: str) -> Floats:
        """Rows as the cache stores them or is multiplied with them."""
        rows, rounding = self.values[name], self._lane.rounding
        return rows if self._lane.kv == "f32" or rounding is None else rounding(op, name, rows)

    def walk(self, state: int, advance: Callable[[int, Floats], Floats]) -> None:
        assert self._lane.states is not None
        self._lane.states.walk(state, self.step, advance)

    def located(self, layer: int, slots: NDArray[np.integer[Any]]) -> NDArray[np.integer[Any]]:
        return self._lane.located(layer, slots)

    def cache(self, layer: int) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
        return self._lane.keys[layer], self._lane.cached_values[layer]


class ReferenceFragment:
    """Part of a model in NumPy; the step is done when `submit` returns."""

    def __init__(self, lane: ReferenceLane, outputs: tuple[str, ...]) -> None:
        self._lane, self._outputs = lane, outputs
        self._values: Mapping[str, Floats] = {}
        self._ran = 0.0, 0.0
        self.copy_slots, self.read_pages, self.write_pages = lane.copy_slots, lane.read_pages, lane.write_pages
        self.close = lane.close

    @property
    def resident_bytes(self) -> int:
        return self._lane.resident_bytes

    def submit(self, step: Step, inputs: Mapping[str, Floats]) -> None:
        """Evaluate one step."""
        began = time.perf_counter()
        values = self._lane.values(step, inputs)
        self._values = {name: values[name] for name in self._outputs}
        self._ran = began, time.perf_counter()

    def wait(self) -> Mapping[str, Floats]:
        """The outputs of the last step."""
        return self._values

    @property
    def ran(self) -> tuple[float, float]:
        """Start and end of the last step."""
        return self._ran


def footprint(spec: ModelSpec, tensors: Mapping[str, TensorInfo], limits: Limits) -> Footprint:
    """Bytes of float32 weights and a float32 cache; buffers live for one step only."""
    weight_bytes = sum(4 * weight.n_rows * weight.columns for weight in set(spec.weights()))
    kept = limits.windows
    in_windows = sum(4 * kv.numbers for kv in spec.kv if kept is not None and kept.limit(kv))
    per_token = spec.kv_bytes_per_token(4) - in_windows
    window_bytes = in_windows * PAGE * (0 if kept is None else kept.n_pages)
    kv_bytes = per_token * PAGE * limits.n_pages + window_bytes
    state_bytes = limits.state_slots(spec.states) * spec.state_bytes
    return Footprint(weight_bytes, per_token, kv_bytes, 0, state_bytes, window_bytes, spec.state_bytes)


def _open(options: DeviceOptions) -> ReferenceDevice:
    return ReferenceDevice()


DEVICE = DeviceKind(
    "reference", "plain NumPy, exact and slow: the oracle", _open, footprint, kv_kinds=get_args(KVKind), budgets=True
)
