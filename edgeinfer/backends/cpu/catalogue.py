"""Every kernel by name: its argument record and where its code is. Code is loaded only to be compiled.

In: panels, page layouts, instruction sets. Out: `Kernel`s and `Function`s for a `KernelLibrary`. A name says everything
that the compiled code depends on beside the sources. Loads no compiler.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from edgeinfer.backends.cpu import chosen_records, records
from edgeinfer.backends.cpu.columns import ColumnForm
from edgeinfer.backends.cpu.pages import PageLayout
from edgeinfer.backends.cpu.panels import FloatPanel, IntegerPanel

Code = Callable[..., Any]

TILED = MappingProxyType({"amx": "avx512vnni"})
"""Instruction sets with tile registers, for large products; and whose vectors their other kernels use."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """Code that a tape calls with (address of one argument record, worker, crew), and the record's dtype."""

    name: str
    load: Callable[[], Code]
    arguments: np.dtype[np.void]

    @property
    def n_arguments(self) -> int:
        return 3

    @property
    def returns(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class Function:
    """Code that Python calls with int64s, and that returns an int64 or nothing."""

    name: str
    load: Callable[[], Code]
    n_arguments: int
    returns: bool = True


@dataclass(frozen=True, slots=True)
class Source:
    """A function of a module of a package, or with `parameters` what that function makes."""

    module: str
    name: str
    parameters: tuple[str | None, ...] | None = None
    package: str = "edgeinfer.backends.cpu.kernels"

    def __call__(self) -> Code:
        found: Code = getattr(importlib.import_module(f"{self.package}.{self.module}"), self.name)
        made: Code = found if self.parameters is None else found(*self.parameters)
        return made


ROUND_ROWS = Kernel("round_rows", Source("activations", "round_rows"), records.ROUND_ROWS)
RMS_NORM = Kernel("rms_norm", Source("rows", "rms_norm"), records.RMS_NORM)
LAYER_NORM = Kernel("layer_norm", Source("rows", "layer_norm"), records.LAYER_NORM)
GATED = {name: Kernel(f"gated_{name}", Source("rows", "gated", (name,)), records.COLUMNS) for name in records.CURVES}
ACT = {name: Kernel(f"act_{name}", Source("rows", "act", (name,)), records.COLUMNS) for name in records.CURVES}
CUT_GATED = {
    name: Kernel(f"cut_gated_{name}", Source("thresholds", "gated", (name,)), records.CUT_COLUMNS)
    for name in records.CURVES
}
CUT_ACT = {
    name: Kernel(f"cut_act_{name}", Source("thresholds", "act", (name,)), records.CUT_COLUMNS)
    for name in records.CURVES
}
ADD = Kernel("add_rows", Source("rows", "add_rows"), records.COLUMNS)
ADD_VECTOR = Kernel("add_vector", Source("rows", "add_vector"), records.COLUMNS)
SOFT_CAP = Kernel("soft_cap", Source("rows", "soft_cap"), records.COLUMNS)
SCALE = Kernel("scale_rows", Source("rows", "scale_rows"), records.COLUMNS)
ZERO = Kernel("zero_rows", Source("rows", "zero_rows"), records.COLUMNS)
FIND_PEAKS = Kernel("find_peaks", Source("rows", "find_peaks"), records.PEAKS)
TAKE_OUTPUTS = Kernel("take_outputs", Source("rows", "take_outputs"), records.TAKE_OUTPUTS)
JOIN_HEADS = Kernel("join_heads", Source("rotary", "join_heads"), records.JOIN_HEADS)
ROPE = Kernel("rope", Source("rotary", "rope"), records.ROPE)
ROUTE = Kernel("route", Source("experts", "route"), chosen_records.ROUTER)
GROUP_BY_EXPERT = Kernel("group_by_expert", Source("experts", "group"), chosen_records.EXPERT_LISTS)
MULTIPLY_EXPERTS = Kernel("multiply_experts", Source("experts", "multiply"), chosen_records.EXPERT_PRODUCTS)
MULTIPLY_EXPERT_FLOATS = Kernel("multiply_floats", Source("experts", "multiply_floats"), chosen_records.EXPERT_PRODUCTS)
FINISH_HIDDEN = Kernel("finish_hidden", Source("experts", "finish_hidden"), chosen_records.EXPERT_HIDDEN)
MARK_ACTIVE = Kernel("mark_active", Source("active", "mark_active"), chosen_records.ACTIVE)
LIST_ACTIVE = Kernel("list_active", Source("active", "list_active"), chosen_records.ACTIVE)
ADVANCE_CONV = Kernel("advance_conv", Source("convolution", "advance"), records.CONVOLUTION)
PREPARE_DELTA = Kernel("prepare_delta", Source("delta", "prepare"), records.DELTA)
DELTA = Kernel("delta", Source("delta", "recurrence"), records.DELTA)
ADVANCE_DELTA = Kernel("advance_delta", Source("delta", "advance"), records.DELTA)
NOTHING = Kernel("nothing", Source("launch", "nothing"), records.NOTHING)

LEAD = Function("lead", Source("launch", "lead"), 5)
SERVE = Function("serve", Source("launch", "serve"), 4)
DOZE = Function("doze", Source("launch", "doze"), 2)
READ_TICKS = Function("read_ticks", Source("launch", "read_ticks"), 0)
FILL_SLOTS = Function("fill_slots", Source("filling", "fill_slots"), 1)
WANT_SLOTS = Function("want_slots", Source("filling", "want"), 3, returns=False)
DROP_SLOTS = Function("drop_slots", Source("filling", "drop"), 2, returns=False)
SETTLE_SLOTS = Function("settle_slots", Source("filling", "settle"), 2)
LEAST_SLOT = Function("least_slot", Source("filling", "least"), 2)
PACK_PANELS = Function("pack_panels", Source("packing", "pack_panels"), 2, returns=False)
READ_RECORDS = Function("read_records", Source("page_reads", "read_records"), 12)
READ_PATTERNS = {
    name: (streams, Function(name, Source("read_memory", name), 2))
    for name, streams in (
        ("read_one_stream", 1),
        ("read_one_stream_ahead", 1),
        ("read_two_streams", 2),
        ("read_two_streams_ahead", 2),
        ("read_four_streams", 4),
        ("read_four_streams_ahead", 4),
    )
}
"""Ways to read memory: streams of each, and its function of (start, lines of a stream)."""


@dataclass(frozen=True, slots=True)
class AttentionKernels:
    """The kernels of an attention op, to be called one after the other: which of them works depends on the step."""

    by_tile: Kernel
    by_chunk: Kernel
    join: Kernel


def causal_conv(activation: str | None) -> Kernel:
    """The kernel with an activation, or with none."""
    source = Source("convolution", "causal_conv", (activation,))
    return Kernel(f"causal_conv-{activation or 'plain'}", source, records.CONVOLUTION)


def attention(layout: PageLayout, isa_name: str) -> AttentionKernels:
    """The kernels for a kind of pages and an instruction set."""
    isa_name = TILED.get(isa_name, isa_name)
    name, parameters = f"{layout.kind}-{isa_name}", (_int8(layout), isa_name)
    return AttentionKernels(
        Kernel(f"attend_by_tile-{name}", Source("attention", "by_tile", parameters), records.ATTENTION),
        Kernel(f"attend_by_chunk-{name}", Source("attention", "by_chunk", parameters), records.ATTENTION),
        Kernel("join_chunks", Source("attention", "join_chunks"), records.ATTENTION),
    )


def store_kv(layout: PageLayout) -> Kernel:
    """The kernel for a kind of pages."""
    return Kernel(f"store_kv-{layout.kind}", Source("store", "store", (_int8(layout),)), records.STORE_KV)


def copy_slots(kind: str) -> Function:
    """The function for a kind of pages."""
    source = Source("moving", "copy_slots", ("int8" if kind == "int8" else None,))
    return Function(f"copy_slots-{kind}", source, 5, returns=False)


def product(panel: IntegerPanel, isa_name: str) -> Kernel:
    """The kernel for an integer panel and an instruction set."""
    isa_name = TILED.get(isa_name, isa_name)
    source = Source("product", "product", (panel.key, isa_name))
    return Kernel(f"product-{panel.key}-{isa_name}", source, records.PRODUCT)


def product_tiles(panel: IntegerPanel, isa_name: str) -> Kernel | None:
    """The kernel for whole tiles of tokens, where the instruction set has tile registers; `product` does the others."""
    if isa_name not in TILED:
        return None
    source = Source("product_amx", "product", (panel.key, TILED[isa_name]))
    return Kernel(f"product-{panel.key}-{isa_name}", source, records.PRODUCT)


def product_float(panel: FloatPanel) -> Kernel:
    """The kernel for a float panel."""
    return Kernel(f"product-{panel.key}", Source("product_float", "product", (panel.key,)), records.FLOAT_PRODUCT)


def chosen_product(panel: IntegerPanel, isa_name: str) -> Kernel:
    """The product of chosen rows of an integer panel."""
    isa_name = TILED.get(isa_name, isa_name)
    source = Source("chosen", "chosen_product", (panel.key, isa_name))
    return Kernel(f"chosen-{panel.key}-{isa_name}", source, chosen_records.CHOSEN)


def column_product(form: ColumnForm, isa_name: str) -> Kernel:
    """The product of columns; that of floats is the same on all instruction sets."""
    if not form.has_scales:
        source = Source("column_floats", "column_product", (form.key,))
        return Kernel(f"columns-{form.key}", source, chosen_records.COLUMN_PRODUCT)
    isa_name = TILED.get(isa_name, isa_name)
    source = Source("column_product", "column_product", (form.key, isa_name))
    return Kernel(f"columns-{form.key}-{isa_name}", source, chosen_records.COLUMN_PRODUCT)


def _int8(layout: PageLayout) -> str | None:
    """What kernels close over: a literal or None, so that they are compiled for their kind of pages alone."""
    return "int8" if layout.kind == "int8" else None
