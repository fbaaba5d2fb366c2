"""Products that read the same buffer, merged into one: fewer and larger nodes for a runtime with a cost per node.

In: ops of a stage. Out: the same ops, with adjacent products of the same source and form merged. Independent of graphs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from edgeinfer.backends.onnx.matrices import Form, form_of
from edgeinfer.graph.op import Op
from edgeinfer.graph.operands import Weight
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.models.gguf import TensorInfo
from edgeinfer.models.quants import QuantFormat, format_of


@dataclass(frozen=True, slots=True)
class ProductGroup:
    """Products of one source with their rows stacked; each op takes its own columns of the result."""

    ops: tuple[MatMul, ...]
    source: QuantFormat
    form: Form

    @property
    def weights(self) -> tuple[Weight, ...]:
        return tuple(op.weight for op in self.ops)

    @property
    def biases(self) -> tuple[Weight, ...]:
        """The biases of all ops, or nothing: products are merged only if all have a bias or none has."""
        return tuple(op.bias for op in self.ops if op.bias is not None)

    @property
    def heights(self) -> tuple[int, ...]:
        return tuple(op.weight.n_rows for op in self.ops)

    @property
    def nbytes(self) -> int:
        """Bytes of its initialisers."""
        matrix = self.form.nbytes(sum(self.heights), self.ops[0].weight.columns)
        return matrix + 4 * sum(bias.n_rows for bias in self.biases)


def joined(ops: Iterable[Op], tensors: Mapping[str, TensorInfo]) -> Iterator[Op | ProductGroup]:
    """The ops in order, every MatMul in a Product."""
    open_group: ProductGroup | None = None
    for op in ops:
        if not isinstance(op, MatMul):
            if open_group is not None:
                yield open_group
                open_group = None
            yield op
            continue
        source = format_of(tensors[op.weight.tensor].ggml_type)
        if open_group is not None and _may_join(open_group, op, source):
            open_group = ProductGroup((*open_group.ops, op), source, open_group.form)
            continue
        if open_group is not None:
            yield open_group
        open_group = ProductGroup((op,), source, form_of(source))
    if open_group is not None:
        yield open_group


def _may_join(group: ProductGroup, op: MatMul, source: QuantFormat) -> bool:
    last = group.ops[-1]
    return (
        not (op.accumulate or last.accumulate)
        and op.source == last.source
        and op.source not in {other.out for other in (*group.ops, op)}
        and op.out not in {other.out for other in group.ops}
        and source.ggml_type == group.source.ggml_type
        and op.weight.columns == last.weight.columns
        and (op.bias is None) == (last.bias is None)
    )
