"""Memory that the ONNX device takes for a model, counted from the header alone.

In: a ModelSpec, the tensor table, limits. Out: the exact bytes that a lane then reports: initialisers, rows of the
cache, and bound inputs and outputs. Keys and values are float32 whatever format is requested. Not counted: activations,
which ONNX Runtime keeps in its own arena (as large as the largest pass so far), and copies of the weights while a
session is created (about two).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edgeinfer.backends.base import Footprint, Limits
from edgeinfer.backends.cache_rows import SPARE_ROWS, SPARE_SHARE
from edgeinfer.backends.onnx.matrices import ProductGroup, joined
from edgeinfer.backends.onnx.ops import DEVICE_OPS
from edgeinfer.graph.graph import Fragment, ModelSpec, whole
from edgeinfer.graph.operands import Rows
from edgeinfer.graph.ops.attention import Attention
from edgeinfer.graph.ops.embed import Embed
from edgeinfer.graph.ops.layer_norm import LayerNorm
from edgeinfer.graph.ops.rms_norm import RMSNorm
from edgeinfer.graph.ops.rope import Rope
from edgeinfer.graph.ops.take_outputs import TakeOutputs
from edgeinfer.graph.rotary import RopeTable
from edgeinfer.graph.step import PAGE
from edgeinfer.models.gguf import TensorInfo

LEAD_ROWS = 1
"""Rows in front of all others that no token sees.

With an empty cache GroupQueryAttention would count positions itself.
"""


@dataclass(frozen=True, slots=True)
class RowCounts:
    """Number of rows in the cache and the bound buffers of a fragment."""

    n_slots: int
    cache_rows: int
    max_tokens: int
    max_outputs: int
    table_rows: int

    @classmethod
    def of(cls, limits: Limits) -> RowCounts:
        """Room for every slot, for dead rows up to the compaction limit, and for the rows of one pass."""
        n_slots = limits.n_pages * PAGE
        spare = max(limits.max_tokens, SPARE_ROWS + int(SPARE_SHARE * n_slots))
        cache_rows = LEAD_ROWS + n_slots + spare
        # GroupQueryAttention needs a rotation for every row of the cache, although it looks them up by position only.
        table_rows = max(limits.n_context, cache_rows)
        return cls(n_slots, cache_rows, limits.max_tokens, max(1, limits.max_outputs), table_rows)


def footprint(spec: ModelSpec, tensors: Mapping[str, TensorInfo], limits: Limits) -> Footprint:
    """Bytes of a whole model. Raises UnsupportedModel for an unsupported quant format."""
    return fragment_footprint(whole(spec), tensors, limits)


def fragment_footprint(fragment: Fragment, tensors: Mapping[str, TensorInfo], limits: Limits) -> Footprint:
    """Bytes of a fragment. Raises as `footprint`."""
    DEVICE_OPS.check_kinds(fragment.spec.ops())
    spec, sizes = fragment.spec, RowCounts.of(limits)
    per_token = spec.kv_bytes_per_token(4)
    spare = per_token * (sizes.cache_rows - sizes.n_slots)
    held = weight_bytes(spec, tensors, sizes)
    return Footprint(held, per_token, per_token * sizes.n_slots, spare + bound_bytes(fragment, sizes))


def weight_bytes(spec: ModelSpec, tensors: Mapping[str, TensorInfo], sizes: RowCounts) -> int:
    """Bytes of all initialisers, without the few numbers that are shapes."""
    products = {item for stage in spec.stages for item in joined(stage.ops, tensors) if isinstance(item, ProductGroup)}
    norms = {vector for op in spec.ops() if isinstance(op, LayerNorm | RMSNorm) for vector in op.vectors}
    ones = {op.width for op in spec.ops() if isinstance(op, LayerNorm | RMSNorm) and op.weight is None}
    tables = sum(4 * table.rotary_width * sizes.table_rows for table in rope_tables(spec))
    return sum(product.nbytes for product in products) + 4 * (sum(norm.n_rows for norm in norms) + sum(ones)) + tables


def bound_bytes(fragment: Fragment, sizes: RowCounts) -> int:
    """Bytes of the input and output buffers of the largest pass, without inputs that the caller owns."""
    spec = fragment.spec
    rows = {Rows.TOKENS: sizes.max_tokens, Rows.OUTPUTS: sizes.max_outputs}
    floats = sum(rows[spec.buffer(name).rows] * spec.buffer(name).width for name in fragment.outputs)
    floats += sum(sizes.max_tokens * op.weight.columns for op in spec.ops() if isinstance(op, Embed))
    floats += len(windows(spec)) * sizes.max_tokens * sizes.cache_rows
    positions = 8 * sizes.max_tokens if rope_tables(spec) else 0
    outputs = 8 * sizes.max_outputs if any(isinstance(op, TakeOutputs) for op in spec.ops()) else 0
    return 4 * floats + positions + outputs


def rope_tables(spec: ModelSpec) -> tuple[RopeTable, ...]:
    """The distinct rotary tables, in order of use."""
    return tuple(dict.fromkeys(op.table for op in spec.ops() if isinstance(op, Rope)))


def windows(spec: ModelSpec) -> tuple[int | None, ...]:
    """The distinct reaches of attention, in order of use: one mask each."""
    return tuple(dict.fromkeys(op.window for op in spec.ops() if isinstance(op, Attention)))
