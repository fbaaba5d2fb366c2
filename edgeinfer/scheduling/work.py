"""What each stage of a model has to do, as numbers: products, attention, and everything else counted in elements.

In: a ModelSpec and the tensor table of a header. Out: a `StageWork` per stage; equal layers share one shape. Reads no
weights and knows no device.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from edgeinfer.models.gguf import TensorInfo
from edgeinfer.models.spec import ModelSpec, Stage
from edgeinfer.models.work import share_read
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
    Router,
    SoftCap,
    StoreKV,
    TakeOutputs,
    Weight,
)


@dataclass(frozen=True, slots=True)
class Product:
    """A matrix of `n_rows` times `columns` weights in a quant format. `kind`: its tensor's name without the layer.

    Of `experts` it is the matrices of all, one after the other, and a token has `active` of them.
    """

    kind: str
    form: str
    bytes_per_weight: float
    n_rows: int
    columns: int
    experts: int = 1
    active: int = 1

    def share_read(self, n_tokens: int) -> float:
        """The share of the rows that a pass of so many tokens is expected to read."""
        return share_read(self.experts, self.active, n_tokens)

    @property
    def share_used(self) -> float:
        """The share of the rows that a token is multiplied by."""
        return self.active / self.experts

    @property
    def n_weights(self) -> int:
        return self.n_rows * self.columns

    @property
    def n_bytes(self) -> float:
        return self.n_weights * self.bytes_per_weight


@dataclass(frozen=True, slots=True)
class Heads:
    """Attention of one layer: query heads, key/value heads, their width, and the window if there is one."""

    heads: int
    kv_heads: int
    head_width: int
    window: int | None = None

    def kv_bytes_per_token(self, element_bytes: float = 2.0) -> float:
        """Bytes that a cached token takes in this layer."""
        return 2 * self.kv_heads * self.head_width * element_bytes

    def reach(self, n_tokens: int, n_cached: int) -> int:
        """Cached positions that a pass of so many tokens looks at, the tokens' own included."""
        return n_tokens + min(n_cached, self.window or n_cached)

    def multiply_adds(self, n_tokens: int, n_cached: int) -> float:
        """Of scores and of blending, for `n_tokens` in a row after `n_cached`."""
        first, last = n_cached + 1, n_cached + n_tokens
        if self.window is None or last <= self.window:
            seen = (first + last) * n_tokens / 2
        else:
            below = max(0, self.window - first + 1)  # tokens that see everything before them
            seen = (first + first + below - 1) * below / 2 + (n_tokens - below) * self.window
        return 2 * self.heads * self.head_width * seen


@dataclass(frozen=True, slots=True)
class StageShape:
    """The work of a stage but for its name. `n_elements`: numbers that other ops write for a token.

    `for_outputs`: its products are computed for the tokens whose logits are wanted alone.
    """

    products: tuple[Product, ...]
    attention: Heads | None
    n_elements: int
    n_ops: int
    for_outputs: bool = False

    @property
    def weight_bytes(self) -> float:
        return sum(product.n_bytes for product in self.products)


@dataclass(frozen=True, slots=True)
class StageWork:
    """A stage and its shape. `tensors`: the tensor of each product, in order."""

    name: str
    shape: StageShape
    tensors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ModelWork:
    """A whole model. `width` numbers go from stage to stage for each token; `n_layers` have attention."""

    name: str
    stages: tuple[StageWork, ...]
    width: int

    @property
    def weight_bytes(self) -> float:
        """Bytes of all matrices that products read."""
        return sum(stage.shape.weight_bytes for stage in self.stages)

    @property
    def n_weights(self) -> int:
        """Weights of all matrices that products read."""
        return sum(product.n_weights for stage in self.stages for product in stage.shape.products)

    @property
    def formats(self) -> tuple[str, ...]:
        """Quant formats of the matrices, those of most bytes first."""
        n_bytes: dict[str, float] = {}
        for stage in self.stages:
            for product in stage.shape.products:
                n_bytes[product.form] = n_bytes.get(product.form, 0.0) + product.n_bytes
        return tuple(sorted(n_bytes, key=lambda form: -n_bytes[form]))

    def kv_bytes_per_token(self, element_bytes: float = 2.0) -> float:
        """Bytes that a cached token takes in all layers."""
        heads = (stage.shape.attention for stage in self.stages)
        return sum(each.kv_bytes_per_token(element_bytes) for each in heads if each is not None)


def work_of(spec: ModelSpec, tensors: Mapping[str, TensorInfo]) -> ModelWork:
    """The work of a model. An embedding counts as elements: only the rows of the tokens are read."""
    shapes: dict[StageShape, StageShape] = {}
    stages = []
    for stage in spec.stages:
        shape = _shape(stage, tensors)
        found = tuple(weight.tensor for op in stage.ops for weight, _, _ in _matrices(op))
        stages.append(StageWork(stage.name, shapes.setdefault(shape, shape), found))
    return ModelWork(spec.name, tuple(stages), spec.width)


def _shape(stage: Stage, tensors: Mapping[str, TensorInfo]) -> StageShape:
    products = tuple(_product(*each, tensors) for op in stage.ops for each in _matrices(op))
    heads = [Heads(op.heads, op.kv_heads, op.head_width, op.window) for op in stage.ops if isinstance(op, Attention)]
    attention = heads[0] if heads else None
    for_outputs = any(isinstance(op, TakeOutputs) for op in stage.ops)
    return StageShape(products, attention, sum(map(_elements, stage.ops)), len(stage.ops), for_outputs)


def _matrices(op: Op) -> Iterator[tuple[Weight, int, int]]:
    """A matrix of each of an op's products, how many there are of its kind, and how many of them a token has."""
    if isinstance(op, MatMul):
        yield op.weight, 1, 1
    if isinstance(op, Experts):
        for weights in (op.gate, op.up, op.down):
            yield weights[0], len(weights), op.active


def _product(weight: Weight, experts: int, active: int, tensors: Mapping[str, TensorInfo]) -> Product:
    info = tensors[weight.tensor]
    n_weights = 1
    for side in info.shape:
        n_weights *= side
    parts = weight.tensor.removesuffix(".weight").split(".")
    kind = parts[-1] if parts[0] == "blk" else ".".join(parts)
    rows = experts * weight.n_rows
    return Product(kind, info.type_name, info.nbytes / n_weights, rows, weight.columns, experts, active)


def _elements(op: Op) -> int:
    """Numbers that an op writes for a token, where it is neither product nor attention; a product reads its source."""
    match op:
        case Embed() | MatMul():
            return op.weight.columns if isinstance(op, Embed) or not op.source.startswith("normed") else 0
        case PositionEmbed():
            return op.weight.columns
        case RMSNorm():
            return op.width * op.groups
        case Rope():
            return op.heads * op.head_width
        case StoreKV():
            return 2 * op.kv_heads * op.head_width
        case Router():
            return op.experts
        case Experts():
            return op.active * op.gate[0].n_rows
        case LayerNorm() | GatedAct() | Act() | Add() | TakeOutputs() | SoftCap():
            return op.width
        case Attention():
            return 0
