"""What the files of `ops` state about each op, and which kernels a model therefore needs, so all are compiled at once.

In: a ModelSpec, a tensor table, the kind of KV pages, an instruction set. Out: kernels and functions of the catalogue,
known before any memory is allocated. `lowering` makes the same choices with the same functions. Knows no op by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

from edgeinfer.backends.cpu import catalogue
from edgeinfer.backends.cpu.layout.expert_panels import ExpertPanels, expert_panels, panel_of
from edgeinfer.backends.cpu.layout.pages import PageLayout
from edgeinfer.backends.cpu.layout.panels import ELEMENTS, FloatPanel, IntegerPanel, Panel, panel_for
from edgeinfer.backends.cpu.lowering.fusion import Fusion, Sections, fuse
from edgeinfer.backends.cpu.record_layers import record_layers
from edgeinfer.backends.cpu.workers.tape import Call
from edgeinfer.backends.device_ops import DeviceOps
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.op import Op
from edgeinfer.graph.operands import Rows
from edgeinfer.graph.ops.attention import Attention
from edgeinfer.graph.ops.experts import Experts
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.jit.code import CompiledFunction, Kernel
from edgeinfer.models.gguf import TensorInfo
from edgeinfer.models.quants import FORMATS, format_of
from edgeinfer.settings import KVKind

if TYPE_CHECKING:
    from edgeinfer.backends.cpu.lowering.model import CpuLowering


@dataclass(frozen=True, slots=True)
class KernelTarget:
    """What a kernel is compiled for: the kind of KV pages, the instruction set, and whether passes state budgets."""

    kv: KVKind
    isa_name: str
    budgets: bool = False


@dataclass(frozen=True, slots=True)
class CpuOp:
    """One op. `kernels`: given the choices, the op's place in the model and the op; `calls`: its calls on the tape.

    `advances`: the calls that advance a state by tokens of the last pass, for an op that keeps one.
    """

    kernels: Callable[[KernelChoice, int, Any, KernelTarget], list[Kernel]]
    calls: Callable[[CpuLowering, Any], list[Call]]
    fields: frozenset[str] = frozenset()
    why_not: Callable[[Op], str | None] | None = None
    advances: Callable[[CpuLowering, Any], list[Call]] | None = None


DEVICE_OPS: DeviceOps[CpuOp] = DeviceOps("edgeinfer.backends.cpu.ops", "cpu")


WORKER_POOL = (catalogue.LEAD, catalogue.SERVE, catalogue.DOZE, catalogue.READ_TICKS)
FILLING = (
    catalogue.FILL_SLOTS,
    catalogue.WANT_SLOTS,
    catalogue.DROP_SLOTS,
    catalogue.SETTLE_SLOTS,
    catalogue.LEAST_SLOT,
)
"""Functions that read experts that do not stay in memory."""


class KernelChoice:
    """Decisions about a model's ops that depend only on the formats of their weights."""

    def __init__(self, spec: ModelSpec, tensors: Mapping[str, TensorInfo], sections: Sections | None = None) -> None:
        self.ops: list[Op] = list(spec.ops())
        self.sections = sections or Sections.one(len(self.ops))
        self._rows = {buffer.name: buffer.rows for buffer in spec.buffers}
        self._tensors = tensors
        self.fusion: Fusion = fuse(self.ops, self.is_integer, self._same_panels, self.sections)

    def panel(self, op: MatMul) -> Panel:
        """How a product's weights are packed."""
        return panel_of(op.weight, self._tensors)

    def expert_panels(self, op: Experts) -> ExpertPanels:
        """How the weights of experts are packed. Raises UnsupportedModel if two experts differ."""
        return expert_panels(op, self._tensors)

    def tiles(self, op: MatMul, isa_name: str) -> Kernel | None:
        """The kernel for many tokens, if there is one; None for products of output rows, as passes want few logits."""
        panel = self.panel(op)
        assert isinstance(panel, IntegerPanel)
        return catalogue.product_tiles(panel, isa_name) if self._rows[op.source] is Rows.TOKENS else None

    def split(self, op: MatMul, isa_name: str) -> Kernel | None:
        """The kernel of a product of float panels that need not be exact, if there is one."""
        panel = self.panel(op)
        assert isinstance(panel, FloatPanel)
        return catalogue.product_split(panel, isa_name) if op.precision == "high" else None

    def is_integer(self, op: MatMul) -> bool:
        """Whether a product's activations are rounded to int8."""
        return isinstance(self.panel(op), IntegerPanel)

    def _same_panels(self, first: MatMul, second: MatMul) -> bool:
        shapes = [(self.panel(op), op.weight.n_rows, op.weight.columns) for op in (first, second)]
        return shapes[0] == shapes[1]


def whole_attention(op: Attention, layout: PageLayout, isa_name: str) -> Kernel | None:
    """The kernel of attention over whole texts that need not be exact, if there is one and no field asks for more."""
    sizes = op.query, op.out, op.layer, op.heads, op.kv_heads, op.key_width, op.value_width, op.scale
    is_plain = op == Attention(*sizes, causal=False, precision="high")
    return catalogue.attend_whole(layout, isa_name) if is_plain else None


def kernels_of(
    spec: ModelSpec,
    tensors: Mapping[str, TensorInfo],
    kv: KVKind,
    isa_name: str,
    sections: Sections | None = None,
    *,
    by_records: bool = False,
    budgets: bool = False,
) -> list[Kernel | CompiledFunction]:
    """All that a lane of this model calls, each kernel and function once. `sections`: None for one section of all ops.

    `by_records`: layers that can be stored as records are. `budgets`: passes may state budgets of attention.
    """
    choice = KernelChoice(spec, tensors, sections)
    found: list[Kernel | CompiledFunction] = [
        *WORKER_POOL,
        catalogue.PACK_PANELS,
        catalogue.copy_slots(kv),
        catalogue.FIND_PEAKS,
    ]
    found += [catalogue.summarise_pages(kv)] if budgets else []
    choices = [choice]
    if spec.scales and sections is None:  # passes without adapters have the fused ops of the model alone
        choices.append(KernelChoice(spec.without_adapters(frozenset(range(len(spec.scales)))), tensors))
    for each in choices:
        for place, op in enumerate(each.ops):
            found += DEVICE_OPS.of(op).kernels(each, place, op, KernelTarget(kv, isa_name, budgets))
    records = record_layers(choice.ops, tensors) if by_records else None
    found += [] if records is None else records.kernels(isa_name)
    return list({kernel.name: kernel for kernel in found}.values())


def usual_kernels(kv: KVKind, isa_name: str, ggml_types: Sequence[int]) -> list[Kernel | CompiledFunction]:
    """Kernels that a Llama of these types of weights needs, before anything else is known of the model."""
    attention = catalogue.attention(PageLayout(kv, 1, 1), isa_name)
    found: list[Kernel | CompiledFunction] = [attention.by_tile, attention.by_chunk, attention.join]
    for panel in {panel_for(format_of(each)) for each in ggml_types}:
        if isinstance(panel, FloatPanel):
            found.append(catalogue.product_float(panel, isa_name))
        else:
            tiles = catalogue.product_tiles(panel, isa_name)
            found += [catalogue.product(panel, isa_name), *([tiles] if tiles else [])]
    found += [*WORKER_POOL, catalogue.PACK_PANELS, catalogue.copy_slots(kv), catalogue.FIND_PEAKS, catalogue.ROUND_ROWS]
    return [*found, catalogue.ROPE, catalogue.store_kv(PageLayout(kv, 1, 1))]


def all_kernels(isa_name: str) -> list[Kernel | CompiledFunction]:
    """All of the catalogue for an instruction set, with panels of every quant format: to be compiled beforehand.

    Kernels of record layers, of which few models have any, are not among them.
    """
    constants = vars(catalogue).values()
    found: list[Kernel | CompiledFunction] = [
        value for value in constants if isinstance(value, Kernel | CompiledFunction)
    ]
    by_name = (catalogue.GATED, catalogue.ACT, catalogue.CUT_GATED, catalogue.CUT_ACT)
    found += [kernel for kernels in by_name for kernel in kernels.values()]
    found += [catalogue.causal_conv(activation) for activation in (None, "silu")]
    split = [catalogue.product_split(FloatPanel(element), isa_name) for element in ELEMENTS]
    found += [kernel for kernel in split if kernel is not None]
    types = [form.ggml_type for form in FORMATS.entries().values()]
    for kind in get_args(KVKind):
        layout = PageLayout(kind, 1, 1)
        chosen = catalogue.attention(layout, isa_name, chosen=True)
        found += [*usual_kernels(kind, isa_name, types), catalogue.store_kv(layout), catalogue.summarise_pages(kind)]
        found += [*catalogue.choose_chunks(layout), chosen.by_tile, chosen.by_chunk, chosen.join]
        whole = catalogue.attend_whole(layout, isa_name)
        found += [catalogue.turn_keys(kind), *([whole] if whole else [])]
        found.append(catalogue.choose_for_blocks(layout, isa_name))
    return list({kernel.name: kernel for kernel in found}.values())
