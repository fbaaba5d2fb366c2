"""The work of each stage of a model, as numbers: matmuls, attention, and everything else counted in elements.

In: a ModelSpec and the tensor table of a header. Out: a `StageWork` per stage; equal layers share one shape. Reads no
weights and knows no device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from edgeinfer.graph.graph import ModelSpec, Stage
from edgeinfer.graph.op import AttentionHeads, MatMulCost, share_read
from edgeinfer.graph.ops.store_kv import StoreKV
from edgeinfer.models.gguf import TensorInfo


@dataclass(frozen=True, slots=True)
class MatMulWork:
    """A matrix of `n_rows` times `columns` weights in a quant format. `kind`: its tensor's name without the layer.

    `form`: the format, and "high" after it if products of that precision are enough.

    For `experts` it contains the matrices of all experts, one after another, and each token uses `active` of them.
    """

    kind: str
    form: str
    bytes_per_weight: float
    n_rows: int
    columns: int
    experts: int = 1
    active: int = 1

    def share_read(self, n_tokens: int) -> float:
        """The share of the rows that a pass of this many tokens is expected to read."""
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
class StageShape:
    """The work of a stage except its name. `n_elements`: numbers that other ops write per token.

    `for_outputs`: its matmuls run only for the tokens whose logits are needed. `shares_kv`: it attends to keys and
    values that an earlier stage keeps.
    """

    products: tuple[MatMulWork, ...]
    attention: AttentionHeads | None
    n_elements: int
    n_ops: int
    for_outputs: bool = False
    shares_kv: bool = False

    def kv_bytes_per_token(self, element_bytes: float = 2.0) -> float:
        """Bytes of a cached token in this stage."""
        if self.attention is None or self.shares_kv:
            return 0.0
        return self.attention.kv_bytes_per_token(element_bytes)

    @property
    def weight_bytes(self) -> float:
        return sum(product.n_bytes for product in self.products)


@dataclass(frozen=True, slots=True)
class StageWork:
    """A stage and its shape. `tensors`: the tensor of each matmul, in order."""

    name: str
    shape: StageShape
    tensors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ModelWork:
    """A whole model. `width` numbers pass from stage to stage for each token; `n_layers` have attention."""

    name: str
    stages: tuple[StageWork, ...]
    width: int

    @property
    def weight_bytes(self) -> float:
        """Bytes of all matrices that matmuls read."""
        return sum(stage.shape.weight_bytes for stage in self.stages)

    @property
    def n_weights(self) -> int:
        """Weights of all matrices that matmuls read."""
        return sum(product.n_weights for stage in self.stages for product in stage.shape.products)

    @property
    def formats(self) -> tuple[str, ...]:
        """Quant formats of the matrices, those with the most bytes first."""
        n_bytes: dict[str, float] = {}
        for stage in self.stages:
            for product in stage.shape.products:
                n_bytes[product.form] = n_bytes.get(product.form, 0.0) + product.n_bytes
        return tuple(sorted(n_bytes, key=lambda form: -n_bytes[form]))

    def with_span(self, span: float) -> ModelWork:
        """The same work where tokens see so many on average in layers in which passes state what each sees."""
        return replace(self, stages=tuple(_with_span(stage, span) for stage in self.stages))

    def kv_bytes_per_token(self, element_bytes: float = 2.0) -> float:
        """Bytes of a cached token in all layers."""
        return sum(stage.shape.kv_bytes_per_token(element_bytes) for stage in self.stages)


def _with_span(stage: StageWork, span: float) -> StageWork:
    heads = stage.shape.attention
    if heads is None or heads.span is None:
        return stage
    return replace(stage, shape=replace(stage.shape, attention=replace(heads, span=span)))


def work_of(spec: ModelSpec, tensors: Mapping[str, TensorInfo]) -> ModelWork:
    """The work of a model. An embedding counts as elements, because only the rows of the tokens are read."""
    shapes: dict[StageShape, StageShape] = {}
    stages = []
    for stage in spec.stages:
        shape = _shape(stage, tensors)
        found = tuple(each.weight.tensor for op in stage.ops for each in op.cost.products)
        stages.append(StageWork(stage.name, shapes.setdefault(shape, shape), found))
    return ModelWork(spec.name, tuple(stages), spec.width)


def _shape(stage: Stage, tensors: Mapping[str, TensorInfo]) -> StageShape:
    costs = [op.cost for op in stage.ops]
    products = tuple(_product(each, tensors) for cost in costs for each in cost.products)
    attention = next((cost.attention for cost in costs if cost.attention is not None), None)
    shares_kv = attention is not None and not any(isinstance(op, StoreKV) for op in stage.ops)
    for_outputs = any(op.takes_outputs for op in stage.ops)
    return StageShape(products, attention, _elements(stage), len(stage.ops), for_outputs, shares_kv)


def _product(products: MatMulCost, tensors: Mapping[str, TensorInfo]) -> MatMulWork:
    weight = products.weight
    info = tensors[weight.tensor]
    n_weights = 1
    for side in info.shape:
        n_weights *= side
    parts = weight.tensor.removesuffix(".weight").split(".")
    kind = parts[-1] if "blk" in parts[:2] else ".".join(parts)
    rows = products.experts * weight.n_rows
    per_weight = info.nbytes / n_weights
    form = info.type_name if products.precision == "highest" else f"{info.type_name} {products.precision}"
    return MatMulWork(kind, form, per_weight, rows, weight.columns, products.experts, products.active)


def _elements(stage: Stage) -> int:
    """Numbers that ops write per token besides matmuls and attention; a matmul of plain rows reads its source.

    The output of a norm is rounded for the matmuls that follow as it is written.
    """
    ready: set[str] = set()
    count = 0
    for op in stage.ops:
        read = {each.source: each.weight.columns for each in op.cost.products if each.source is not None}
        count += op.cost.n_elements + sum(columns for source, columns in read.items() if source not in ready)
        ready = ready | op.writes if op.readies_rows else ready - op.writes
    return count
