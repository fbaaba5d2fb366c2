"""The reference device: every op in plain NumPy, as the formula reads. The oracle for every other device.

In: a ModelSpec, a GGUF file, steps. Out: logits. Weights are dequantised to float32 once. `activations="int8"` rounds
the inputs of products with quantised weights as integer devices do (per 32, scale = max / 127), or as `rounding`
says, which may replay another device's own rounding; `kv="f16"` rounds keys and values as a float16 cache does,
`kv="int8"` as an int8 cache does, which meets queries rounded likewise. Knows nothing of speed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends import weights
from edgeinfer.backends.base import (
    PAGE,
    DeviceKind,
    DeviceOptions,
    Floats,
    Footprint,
    Int32s,
    Limits,
    Progress,
    Step,
    no_progress,
)
from edgeinfer.backends.meanings import (
    ACTIVATIONS,
    context_slots,
    cut,
    layer_norm,
    rms_norm,
    rotate,
    round_activations,
    round_cached,
    routed_shares,
)
from edgeinfer.models import rope
from edgeinfer.models.fragment import Fragment
from edgeinfer.models.gguf import GGUFFile, TensorInfo
from edgeinfer.models.quants import BlockFormat, format_of
from edgeinfer.models.spec import ModelSpec
from edgeinfer.ops import (
    Act,
    Add,
    Attention,
    Embed,
    Experts,
    GatedAct,
    LayerNorm,
    MatMul,
    Op,
    PositionEmbed,
    RMSNorm,
    Rope,
    RopeTable,
    Router,
    Rows,
    SoftCap,
    StoreKV,
    TakeOutputs,
    Weight,
)
from edgeinfer.settings import KVKind

RoundingOp: TypeAlias = MatMul | Experts | StoreKV | Attention
Rounding: TypeAlias = Callable[[RoundingOp, str, Floats], Floats]
"""What an op reads instead of a buffer: (op, buffer, float32[n, width]) -> the same shape, rounded.

The rows that `Experts` multiplies by its down matrices are called HIDDEN; they come expert by expert.
"""
HIDDEN = "hidden of experts"


def round_source(op: RoundingOp, name: str, source: Floats) -> Floats:
    """The rounding that integer devices do; keys, values and queries are rounded where the cache is met."""
    return round_activations(source) if isinstance(op, MatMul | Experts) else source


class ReferenceDevice:
    """NumPy on the calling thread."""

    name = "reference"
    batch_invariant = False  # BLAS sums in an order that depends on the batch

    def __init__(
        self,
        activations: Literal["f32", "int8"] = "f32",
        kv: Literal["f32"] | KVKind | None = None,
        rounding: Rounding = round_source,
    ) -> None:
        self._activations = activations
        self._kv = kv
        self._rounding = rounding

    def compile(
        self, spec: ModelSpec, file: GGUFFile, limits: Limits, progress: Progress = no_progress
    ) -> ReferenceLane:
        """Dequantise the weights and allocate the cache."""
        kv = self._kv or ("int8" if limits.kv == "int8" else "f32")
        return ReferenceLane(spec, file, limits, self._activations == "int8", kv, self._rounding, progress)

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
        rounding: Rounding,
        progress: Progress,
    ) -> None:
        self._spec = spec
        self._int8, self._kv, self._rounding = int8_activations, kv, rounding
        self._matrices: dict[Weight, Floats] = {}
        self._vectors: dict[Weight, Floats] = {}
        self._rounded: dict[Weight, bool] = {}
        self._rotations: dict[RopeTable, tuple[Floats, Floats]] = {}
        self._last: dict[str, Floats] = {}
        self._load(file, limits, progress)
        n_slots, kv_type = limits.n_pages * PAGE, np.float16 if kv == "f16" else np.float32
        self._keys = [np.zeros((n_slots, kv.kv_heads, kv.head_width), kv_type) for kv in spec.kv]
        self._values = [np.zeros_like(keys) for keys in self._keys]

    def _load(self, file: GGUFFile, limits: Limits, progress: Progress) -> None:
        all_weights, matrices = list(dict.fromkeys(self._spec.weights())), set(self._spec.matrices())
        for done, weight in enumerate(all_weights):
            if weight in matrices:
                self._matrices[weight] = weights.matrix(file, weight)
                form = format_of(file.tensors[weight.tensor].ggml_type)
                self._rounded[weight] = isinstance(form, BlockFormat)
            else:
                self._vectors[weight] = weights.vector(file, weight)
            progress("loading weights", done + 1, len(all_weights))
        for table in {op.table for op in self._spec.ops() if isinstance(op, Rope)}:
            factors = weights.rope_factors(file, table)
            self._rotations[table] = rope.rotations(table, limits.n_context, factors)

    @property
    def resident_bytes(self) -> int:
        arrays = [*self._matrices.values(), *self._vectors.values(), *self._keys, *self._values]
        return sum(array.nbytes for array in arrays)

    def run(self, step: Step) -> Floats:
        """Evaluate one step: float32[O, V]."""
        self._last = self.values(step, {})
        return self._last[self._spec.logits]

    def value(self, name: str) -> Floats:
        """A copy of a buffer's rows after the last run: float32[T or O, width]."""
        return self._last[name].copy()

    def values(self, step: Step, inputs: Mapping[str, Floats]) -> dict[str, Floats]:
        """What all buffers hold after one step that begins with these inputs."""
        values: dict[str, Floats] = {}
        for buffer in self._spec.buffers:
            n_rows = len(step.batch.tokens) if buffer.rows is Rows.TOKENS else len(step.batch.outputs)
            values[buffer.name] = np.zeros((n_rows, buffer.width), np.float32)
        values.update({name: given.copy() for name, given in inputs.items()})
        contexts = [context_slots(step, token) for token in range(len(step.batch.tokens))]
        for op in self._spec.ops():
            self._apply(op, values, step, contexts)
        return values

    def _apply(self, op: Op, values: dict[str, Floats], step: Step, contexts: list[NDArray[np.int64]]) -> None:
        match op:
            case Embed():
                rows = self._matrices[op.weight][step.batch.tokens]
                values[op.out] = rows * np.float32(op.scale)
            case PositionEmbed():
                values[op.out] = values[op.out] + self._matrices[op.weight][step.batch.positions]
            case LayerNorm():
                vectors = self._vectors[op.weight], self._vectors[op.bias]
                values[op.out] = layer_norm(values[op.source], *vectors, op.epsilon)
            case RMSNorm():
                values[op.out] = rms_norm(values[op.source], self._vectors[op.weight], op.groups, op.epsilon)
            case MatMul():
                product = self._product(op, values[op.source])
                values[op.out] = values[op.out] + product if op.accumulate else product
            case Rope():
                cosines, sines = (table[step.batch.positions] for table in self._rotations[op.table])
                values[op.value] = rotate(values[op.value], op.heads, cosines, sines)
            case StoreKV():
                self._store(op, op.key, self._keys[op.layer], values, step)
                self._store(op, op.value, self._values[op.layer], values, step)
            case Attention():
                queries = self._queries(op, values[op.query])
                for token, slots in enumerate(contexts):
                    values[op.out][token] = self._attend(op, queries[token], slots)
            case GatedAct():
                values[op.out] = cut(ACTIVATIONS[op.activation](values[op.gate]), op.threshold) * values[op.up]
            case Router():
                values[op.out] = routed_shares(values[op.scores], op)
            case Experts():
                values[op.out] = values[op.out] + self._experts(op, values[op.source], values[op.shares])
            case Act():
                values[op.out] = cut(ACTIVATIONS[op.activation](values[op.source]), op.threshold)
            case Add():
                values[op.out] = values[op.out] + values[op.source]
            case TakeOutputs():
                values[op.out] = values[op.source][step.batch.outputs]
            case SoftCap():
                values[op.value] = np.float32(op.cap) * np.tanh(values[op.value] / np.float32(op.cap))

    def _product(self, op: MatMul, source: Floats) -> Floats:
        if self._int8 and self._rounded[op.weight]:
            source = self._rounding(op, op.source, source)
        product: Floats = source @ self._matrices[op.weight].T
        return product if op.bias is None else product + self._vectors[op.bias]

    def _experts(self, op: Experts, source: Floats, shares: Floats) -> Floats:
        """What the experts give each row, in the order of their numbers."""
        total = np.zeros_like(source)
        rounded = self._rounding(op, op.source, source) if self._int8 and self._rounds(op.gate + op.up) else source
        pairs = [(expert, np.flatnonzero(shares[:, expert])) for expert in range(shares.shape[1])]
        hidden = [self._hidden(op, expert, rows, source, rounded, shares) for expert, rows in pairs]
        if self._int8 and self._rounds(op.down):
            joined = self._rounding(op, HIDDEN, np.concatenate(hidden))
            hidden = np.split(joined, np.cumsum([len(each) for each in hidden])[:-1])
        for (expert, rows), each in zip(pairs, hidden, strict=True):
            total[rows] += each @ self._matrices[op.down[expert]].T
        return total

    def _hidden(
        self, op: Experts, expert: int, rows: NDArray[np.int64], source: Floats, rounded: Floats, shares: Floats
    ) -> Floats:
        """share * activation(gate) * up of one expert, for its rows: float32[n, F]."""
        gate, up = (
            (rounded if self._rounded[weight] else source)[rows] @ self._matrices[weight].T
            for weight in (op.gate[expert], op.up[expert])
        )
        hidden: Floats = ACTIVATIONS[op.activation](gate) * up * shares[rows, expert, None]
        return hidden

    def _rounds(self, matrices: tuple[Weight, ...]) -> bool:
        """Whether any of these is multiplied by rounded activations."""
        return any(self._rounded[weight] for weight in matrices)

    def _store(
        self, op: StoreKV, name: str, cache: NDArray[np.generic], values: Mapping[str, Floats], step: Step
    ) -> None:
        value = self._rounding(op, name, values[name]) if self._kv != "f32" else values[name]
        value = value.reshape(-1, op.kv_heads, op.head_width)
        cache[step.slots] = round_cached(value) if self._kv == "int8" else value

    def _queries(self, op: Attention, queries: Floats) -> Floats:
        """The scaled queries as the cache meets them: float32[T, G, H / G, K]."""
        queries = self._rounding(op, op.query, queries) if self._kv != "f32" else queries
        scaled = queries.reshape(-1, op.head_width) * np.float32(op.scale)
        scaled = round_activations(scaled) if self._kv == "int8" else scaled
        return scaled.reshape(len(queries), op.kv_heads, -1, op.head_width)

    def _attend(self, op: Attention, query: Floats, slots: NDArray[np.int64]) -> Floats:
        """Attention of one token, float32[G, H / G, K], over its context: float32[H * K]."""
        if op.window is not None:
            slots = slots[-op.window :]
        keys = self._keys[op.layer][slots].astype(np.float32)
        values = self._values[op.layer][slots].astype(np.float32)
        scores = np.einsum("grk,sgk->grs", query, keys)
        if op.soft_cap is not None:
            scores = np.float32(op.soft_cap) * np.tanh(scores / np.float32(op.soft_cap))
        powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
        shares = powers / powers.sum(axis=-1, keepdims=True)
        attended: Floats = np.einsum("grs,sgk->grk", shares, values).reshape(-1)
        return attended

    def copy_slots(self, sources: Int32s, targets: Int32s) -> None:
        """Copy keys and values of slots in all layers."""
        for array in (*self._keys, *self._values):
            array[targets] = array[sources]

    def read_pages(self, pages: Int32s) -> NDArray[np.uint8]:
        """Contents of pages: uint8[len(pages), page_bytes]."""
        parts = [self._paged(array)[pages].reshape(len(pages), -1) for array in (*self._keys, *self._values)]
        if not parts:
            return np.zeros((len(pages), 0), np.uint8)
        return np.ascontiguousarray(np.concatenate(parts, axis=1)).view(np.uint8)

    def write_pages(self, pages: Int32s, contents: NDArray[np.uint8]) -> None:
        """Put back contents of pages."""
        if not self._keys:
            return
        numbers = np.ascontiguousarray(contents).view(self._keys[0].dtype)
        start = 0
        for array in (*self._keys, *self._values):
            paged = self._paged(array)
            width = paged[0].size
            paged[pages] = numbers[:, start : start + width].reshape(len(pages), *paged.shape[1:])
            start += width

    @staticmethod
    def _paged(array: NDArray[np.generic]) -> NDArray[np.generic]:
        return array.reshape(-1, PAGE, *array.shape[1:])

    def close(self) -> None:
        """Drop the arrays."""
        self._matrices, self._vectors, self._keys, self._values = {}, {}, [], []


class ReferenceFragment:
    """Part of a model in NumPy; a step is done when `submit` returns."""

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
        """When the last step began and ended."""
        return self._ran


def footprint(spec: ModelSpec, tensors: Mapping[str, TensorInfo], limits: Limits) -> Footprint:
    """Bytes of float32 weights and a float32 cache; buffers live for one step only."""
    weight_bytes = sum(4 * weight.n_rows * weight.columns for weight in set(spec.weights()))
    per_token = spec.kv_bytes_per_token(4)
    return Footprint(weight_bytes, per_token, per_token * PAGE * limits.n_pages, 0)


def _open(options: DeviceOptions) -> ReferenceDevice:
    return ReferenceDevice()


DEVICE = DeviceKind("reference", "plain NumPy, exact and slow: the oracle", _open, footprint)
