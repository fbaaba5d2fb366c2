"""Every kernel by name: its argument record and the place of its code, which is loaded only to be compiled.

In: panels, page layouts, instruction sets. Out: `Kernel`s and `CompiledFunction`s for a `KernelLibrary`. A name states
everything that the compiled code depends on besides the sources. Loads no compiler.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from edgeinfer.backends import base, meanings
from edgeinfer.backends.cpu.layout import attention_records, chosen_records, part_records, records
from edgeinfer.backends.cpu.layout.pages import PageLayout
from edgeinfer.backends.cpu.layout.panels import FloatPanel, IntegerPanel
from edgeinfer.backends.meanings import FORMS
from edgeinfer.graph import block_choice, budget, step
from edgeinfer.jit.code import CodeSource, CompiledFunction, Kernel
from edgeinfer.jit.library import KernelLibrary, cache_folder, open_library
from edgeinfer.jit.targets import WIDE
from edgeinfer.offload import slot_records
from edgeinfer.settings import KVKind

KERNELS = "edgeinfer.backends.cpu.kernels"

TILED = MappingProxyType({"amx": "avx512fp16"})
"""Instruction sets with tile registers for large products, each with the vector set that all other kernels use."""


def _source(module: str, name: str, parameters: tuple[str | None, ...] | None = None) -> CodeSource:
    return CodeSource(KERNELS, module, name, parameters)


def kernel_sources() -> tuple[Path, ...]:
    """The sources of these kernels, with constants of layouts, rounding and the device interface alone."""
    here = Path(__file__).parent
    kernels = here / "kernels"
    folders = (here / "layout", kernels, *sorted(path for path in kernels.iterdir() if path.is_dir()))
    folders = (*folders, *sorted(here.glob("*/kernels")))  # of folders that may be absent
    constants = base.__file__, meanings.__file__, step.__file__, slot_records.__file__
    choices = block_choice.__file__, budget.__file__
    return Path(__file__), *folders, *map(Path, (*constants, *choices))


def kernel_folder() -> Path:
    """Cache folder for exactly these kernels."""
    return cache_folder(*kernel_sources())


def kernel_library() -> KernelLibrary:
    """The compiled kernels of this device."""
    return open_library(*kernel_sources())


ROUND_ROWS = Kernel("round_rows", _source("matmul.activations", "round_rows"), records.ROUND_ROWS)
RMS_NORM = Kernel("rms_norm", _source("rows", "rms_norm"), records.RMS_NORM)
LAYER_NORM = Kernel("layer_norm", _source("rows", "layer_norm"), records.LAYER_NORM)
GATED = {name: Kernel(f"gated_{name}", _source("rows", "gated", (name,)), records.COLUMNS) for name in records.CURVES}
ACT = {name: Kernel(f"act_{name}", _source("rows", "act", (name,)), records.COLUMNS) for name in records.CURVES}
CUT_GATED = {
    name: Kernel(f"cut_gated_{name}", _source("thresholds", "gated", (name,)), records.CUT_COLUMNS)
    for name in records.CURVES
}
CUT_ACT = {
    name: Kernel(f"cut_act_{name}", _source("thresholds", "act", (name,)), records.CUT_COLUMNS)
    for name in records.CURVES
}
ADD = Kernel("add_rows", _source("rows", "add_rows"), records.COLUMNS)
ADD_SCALED = Kernel("add_scaled", _source("rows", "add_scaled"), records.COLUMNS)
ADD_VECTOR = Kernel("add_vector", _source("rows", "add_vector"), records.COLUMNS)
MUL_VECTOR = Kernel("mul_vector", _source("rows", "mul_vector"), records.COLUMNS)
SOFT_CAP = Kernel("soft_cap", _source("rows", "soft_cap"), records.COLUMNS)
CLIP = Kernel("clip", _source("rows", "clip"), records.COLUMNS)
XIELU = Kernel("xielu", _source("rows", "xielu"), records.COLUMNS)
SCALE = Kernel("scale_rows", _source("rows", "scale_rows"), records.COLUMNS)
ZERO = Kernel("zero_rows", _source("rows", "zero_rows"), records.COLUMNS)
MIX_PARTS = Kernel("mix_parts", _source("parts", "mix_parts"), part_records.PARTS)
ADD_TO_PARTS = Kernel("add_to_parts", _source("parts", "add_to_parts"), part_records.PARTS)
GATED_HEADS = Kernel("gated_heads", _source("parts", "gated_heads"), part_records.PARTS)
MATCH_MAGNITUDE = Kernel("match_magnitude", _source("spread", "match_magnitude"), part_records.MATCH_MAGNITUDE)
KEEP_HIGHEST = Kernel("keep_highest", _source("spread", "keep_highest"), part_records.KEEP_HIGHEST)
CHOOSE_CHUNKS = Kernel("choose_chunks", _source("attention.choice", "choose_chunks"), attention_records.ATTENTION)
FIND_PEAKS = Kernel("find_peaks", _source("rows", "find_peaks"), records.PEAKS)
TAKE_OUTPUTS = Kernel("take_outputs", _source("rows", "take_outputs"), records.TAKE_OUTPUTS)
JOIN_HEADS = Kernel("join_heads", _source("attention.rotary", "join_heads"), records.JOIN_HEADS)
ROPE = Kernel("rope", _source("attention.rotary", "rope"), records.ROPE)
ROUTE = Kernel("route", _source("routing", "route"), chosen_records.ROUTER)
GROUP_BY_EXPERT = Kernel("group_by_expert", _source("experts", "group"), chosen_records.EXPERT_LISTS)
MULTIPLY_EXPERTS = Kernel("multiply_experts", _source("experts", "multiply"), chosen_records.EXPERT_PRODUCTS)
MULTIPLY_EXPERT_FLOATS = Kernel(
    "multiply_floats", _source("experts", "multiply_floats"), chosen_records.EXPERT_PRODUCTS
)
FINISH_HIDDEN = Kernel("finish_hidden", _source("experts", "finish_hidden"), chosen_records.EXPERT_HIDDEN)
READY_LOW_ROWS = Kernel("ready_low_rows", _source("expert_adapters", "ready_low_rows"), chosen_records.LOW_ROWS)
ADVANCE_CONV = Kernel("advance_conv", _source("convolution", "advance"), records.CONVOLUTION)
PREPARE_DELTA = Kernel("prepare_delta", _source("delta", "prepare"), records.DELTA)
DELTA = Kernel("delta", _source("delta", "recurrence"), records.DELTA)
ADVANCE_DELTA = Kernel("advance_delta", _source("delta", "advance"), records.DELTA)
DELTA_BY_COLUMN = Kernel("delta_by_column", _source("delta", "recurrence_by_column"), records.DELTA)
ADVANCE_DELTA_BY_COLUMN = Kernel("advance_delta_by_column", _source("delta", "advance_by_column"), records.DELTA)
PREPARE_STATE_SPACE = Kernel("prepare_state_space", _source("state_space", "prepare"), records.STATE_SPACE)
STATE_SPACE = Kernel("state_space", _source("state_space", "recurrence"), records.STATE_SPACE)
ADVANCE_STATE_SPACE = Kernel("advance_state_space", _source("state_space", "advance"), records.STATE_SPACE)
STATE_SPACE_BY_COLUMN = Kernel(
    "state_space_by_column", _source("state_space", "recurrence_by_column"), records.STATE_SPACE
)
ADVANCE_STATE_SPACE_BY_COLUMN = Kernel(
    "advance_state_space_by_column", _source("state_space", "advance_by_column"), records.STATE_SPACE
)
NOTHING = Kernel("nothing", _source("launch", "nothing"), records.NOTHING)

LEAD = CompiledFunction("lead", _source("launch", "lead"), 5)
SERVE = CompiledFunction("serve", _source("launch", "serve"), 4)
DOZE = CompiledFunction("doze", _source("launch", "doze"), 2)
READ_TICKS = CompiledFunction("read_ticks", _source("launch", "read_ticks"), 0)
FILL_SLOTS = CompiledFunction("fill_slots", _source("weights.filling", "fill_slots"), 1)
WANT_SLOTS = CompiledFunction("want_slots", _source("weights.filling", "want"), 3, returns=False)
DROP_SLOTS = CompiledFunction("drop_slots", _source("weights.filling", "drop"), 2, returns=False)
SETTLE_SLOTS = CompiledFunction("settle_slots", _source("weights.filling", "settle"), 2)
LEAST_SLOT = CompiledFunction("least_slot", _source("weights.filling", "least"), 2)
PACK_PANELS = CompiledFunction("pack_panels", _source("weights.packing", "pack_panels"), 2, returns=False)


@dataclass(frozen=True, slots=True)
class AttentionKernels:
    """The kernels of an attention op, called one after another: the step decides which of them does the work."""

    by_tile: Kernel
    by_chunk: Kernel
    join: Kernel


def causal_conv(activation: str | None) -> Kernel:
    """The kernel for an activation, or for none."""
    source = _source("convolution", "causal_conv", (activation,))
    return Kernel(f"causal_conv-{activation or 'plain'}", source, records.CONVOLUTION)


def attention(layout: PageLayout, isa_name: str, *, chosen: bool = False) -> AttentionKernels:
    """The kernels for a kind of pages and an instruction set. `chosen`: those that attend to chosen chunks."""
    kind, (name, isa_name) = _rounded(layout.kind), _attention_isa(layout, isa_name)
    parameters = (kind, isa_name)
    module, which = ("attention.chosen", "chosen") if chosen else ("attention.attention", "chunks")
    joined = f"join_{which}" if kind is None else f"join_{which}-rotated"
    names = ("attend_chosen_tile", "attend_chosen_chunk") if chosen else ("attend_by_tile", "attend_by_chunk")
    by_tile, by_chunk = (
        Kernel(f"{prefix}-{name}", _source(module, made, parameters), attention_records.ATTENTION)
        for prefix, made in zip(names, ("by_tile", "by_chunk"), strict=True)
    )
    join = Kernel(joined, _source(module, "joining", (kind and "rotated",)), attention_records.ATTENTION)
    return AttentionKernels(by_tile, by_chunk, join)


def attend_whole(layout: PageLayout, isa_name: str) -> Kernel | None:
    """The kernel for whole texts in tile registers, for float16 pages, if the instruction set has any."""
    if isa_name not in TILED or _rounded(layout.kind) is not None:
        return None
    return Kernel("attend_whole", _source("attention.whole", "attend_whole"), attention_records.ATTENTION)


def _attention_isa(layout: PageLayout, isa_name: str) -> tuple[str, str]:
    """A name for the kind of pages and the instruction set that attention is compiled for, and that set."""
    isa_name = TILED.get(isa_name, isa_name)
    if _rounded(layout.kind) is None:  # no integer products: all that matters is how much the registers hold
        return ("f16-wide", "avx512vnni") if isa_name in WIDE else ("f16-narrow", "portable")
    return f"{layout.kind}-{isa_name}", isa_name


def choose_chunks(layout: PageLayout) -> tuple[Kernel, Kernel]:
    """The kernels that choose chunks within budgets, for a kind of pages: one scores, the other ranks."""
    rotates = _rounded(layout.kind) and "rotated"
    name = "score_chunks" if rotates is None else "score_chunks-rotated"
    return Kernel(name, _source("attention.choice", "scoring", (rotates,)), attention_records.ATTENTION), CHOOSE_CHUNKS


def choose_for_blocks(layout: PageLayout, isa_name: str) -> Kernel:
    """The kernel that chooses chunks for blocks of prompts, for a kind of pages and an instruction set."""
    name, isa_name = _attention_isa(layout, isa_name)
    source = _source("attention.block_choice", "choosing", (_rounded(layout.kind), isa_name))
    return Kernel(f"choose_for_blocks-{name}", source, attention_records.ATTENTION)


def summarise_pages(kind: KVKind) -> Kernel:
    """The kernel that summarises keys for budgets, for a kind of pages."""
    source = _source("attention.choice", "summarising", (_rounded(kind),))
    return Kernel(f"summarise_pages-{kind}", source, attention_records.SUMMARISE)


def store_kv(layout: PageLayout) -> Kernel:
    """The kernel for a kind of pages."""
    source = _source("attention.store", "store", (_rounded(layout.kind),))
    return Kernel(f"store_kv-{layout.kind}", source, attention_records.STORE_KV)


def turn_keys(kind: KVKind) -> Kernel:
    """The kernel for a kind of pages."""
    source = _source("attention.turning", "turn_keys", (_rounded(kind),))
    return Kernel(f"turn_keys-{kind}", source, attention_records.TURN_KEYS)


def copy_slots(kind: KVKind) -> CompiledFunction:
    """The function for a kind of pages."""
    source = _source("attention.slots", "copy_slots", (_rounded(kind),))
    return CompiledFunction(f"copy_slots-{kind}", source, 5, returns=False)


def product(panel: IntegerPanel, isa_name: str) -> Kernel:
    """The kernel for an integer panel and an instruction set."""
    isa_name = TILED.get(isa_name, isa_name)
    source = _source("matmul.integers", "product", (panel.key, isa_name))
    return Kernel(f"product-{panel.key}-{isa_name}", source, records.PRODUCT)


def product_tiles(panel: IntegerPanel, isa_name: str) -> Kernel | None:
    """The kernel for whole tiles of tokens, if the instruction set has tile registers; `product` does the others."""
    if isa_name not in TILED:
        return None
    source = _source("matmul.amx", "product", (panel.key, TILED[isa_name]))
    return Kernel(f"product-{panel.key}-{isa_name}", source, records.PRODUCT)


def product_float(panel: FloatPanel, isa_name: str) -> Kernel:
    """The kernel for a float panel; of an instruction set only matters how much the registers hold."""
    name, isa_name = ("wide", "avx512vnni") if TILED.get(isa_name, isa_name) in WIDE else ("narrow", "portable")
    source = _source("matmul.floats", "product", (panel.key, isa_name))
    return Kernel(f"product-{panel.key}-{name}", source, records.FLOAT_PRODUCT)


def product_split(panel: FloatPanel, isa_name: str) -> Kernel | None:
    """The kernel that takes numbers as sums of two bfloat16, if the instruction set has tile registers."""
    if isa_name not in TILED:
        return None
    source = _source("matmul.split_floats", "product", (panel.key,))
    return Kernel(f"product-split-{panel.key}", source, records.FLOAT_PRODUCT)


def _rounded(kind: KVKind) -> KVKind | None:
    """The value that kernels close over: a literal or None, so they are compiled for their kind of pages alone."""
    return None if FORMS[kind] is None else kind
