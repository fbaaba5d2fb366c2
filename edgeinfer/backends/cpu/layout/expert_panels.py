"""The layout of mixtures of experts: how the experts' matrices are packed, and the rows of a pass's pairs.

In: ops, a tensor table, the most tokens of a pass. Out: panels, shapes and byte counts. A pair is a token and one of
its experts. Loads no compiler, so that a plan can use it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from edgeinfer.backends.cpu.layout.panels import IntegerPanel, Panel, panel_for
from edgeinfer.backends.cpu.layout.rounded import RECORD_BYTES
from edgeinfer.errors import UnsupportedModel
from edgeinfer.graph.operands import Weight
from edgeinfer.graph.ops.experts import Experts
from edgeinfer.models.gguf import TensorInfo
from edgeinfer.models.quants import format_of

BLOCK = 32


def panel_of(weight: Weight, tensors: Mapping[str, TensorInfo]) -> Panel:
    """How a matrix is packed."""
    return panel_for(format_of(tensors[weight.tensor].ggml_type))


@dataclass(frozen=True, slots=True)
class AdapterPanels:
    """How the A and B matrices of an adapter of experts are packed, and whether it is one of down matrices."""

    lora_a: Panel
    lora_b: Panel
    is_down: bool


@dataclass(frozen=True, slots=True)
class ExpertPanels:
    """How the gate (None: there are none), up and down matrices of all experts of an op are packed.

    adapters  how those of its LoRA adapters are packed, in their order
    all       the panels of `Experts.all_stacks`
    is_plain  whether hidden rows are activation(gate) * up, without biases, adapters or shares in between
    """

    gate: Panel | None
    up: Panel
    down: Panel
    adapters: tuple[AdapterPanels, ...]
    all: tuple[Panel, ...]
    is_plain: bool

    @property
    def first(self) -> tuple[Panel, ...]:
        """Those of the matrices that read the source."""
        return (self.up,) if self.gate is None else (self.gate, self.up)

    @property
    def _source_readers(self) -> tuple[Panel, ...]:
        """The panels that the source is multiplied by."""
        return (*self.first, *(each.lora_a for each in self.adapters if not each.is_down))

    @property
    def _hidden_readers(self) -> tuple[Panel, ...]:
        """The panels that hidden rows are multiplied by."""
        return (self.down, *(each.lora_a for each in self.adapters if each.is_down))

    @property
    def rounds_source(self) -> bool:
        """Whether a product reads rounded activations."""
        return any(isinstance(panel, IntegerPanel) for panel in self._source_readers)

    @property
    def gathers_floats(self) -> bool:
        """Whether a product reads unrounded activations."""
        return not all(isinstance(panel, IntegerPanel) for panel in self._source_readers)

    @property
    def is_gated(self) -> bool:
        """Whether gate, up and activation are one product."""
        return self.is_plain and isinstance(self.gate, IntegerPanel) and self.gate == self.up

    @property
    def rounds_hidden(self) -> bool:
        """Whether a product reads rounded hidden rows."""
        return any(isinstance(panel, IntegerPanel) for panel in self._hidden_readers)

    @property
    def keeps_hidden(self) -> bool:
        """Whether a product reads unrounded hidden rows."""
        return not all(isinstance(panel, IntegerPanel) for panel in self._hidden_readers)


def expert_panels(op: Experts, tensors: Mapping[str, TensorInfo]) -> ExpertPanels:
    """The panels of an op's experts. Raises UnsupportedModel if two experts have different formats."""
    found = []
    for matrices in op.all_stacks:
        kinds = {tensors[name].ggml_type: name for name in {weight.tensor for weight in matrices}}
        if len(kinds) > 1:
            first, second = list(kinds.values())[:2]
            raise UnsupportedModel(
                f"{first} and {second} are in different formats; the CPU device takes experts of a layer in one format"
            )
        found.append(panel_of(matrices[0], tensors))
    *gates, up, down = found[: len(op.stacks)]
    adapters = tuple(
        AdapterPanels(panel_of(each.lora_a[0], tensors), panel_of(each.lora_b[0], tensors), bool(each.out))
        for each in op.adapters
    )
    return ExpertPanels(
        *(gates[0] if gates else None, up, down, adapters, tuple(found)),
        is_plain=op.biases is None
        and op.activation != "swiglu_oai"
        and not op.scales_source
        and all(each.is_down for each in adapters),
    )


@dataclass(frozen=True, slots=True)
class ExpertSizes:
    """Rows of a pass's pairs, the largest of any op: bytes of each kind, and the counts behind them.

    gathered, floats  activations of the pairs as int8 records and as floats
    hidden, up        results of gate and up products, or of both at once or up alone in the first
    records           hidden rows as int8 records
    low, low_records  rows between the A and B matrices of a LoRA adapter, of which there are `most_lows` at a time
    """

    most_pairs: int = 0
    most_experts: int = 0
    most_active: int = 0
    hidden_floats: int = 0
    gathered_bytes: int = 0
    float_bytes: int = 0
    hidden_bytes: int = 0
    up_bytes: int = 0
    record_bytes: int = 0
    low_bytes: int = 0
    low_record_bytes: int = 0
    most_lows: int = 0

    @property
    def total_bytes(self) -> int:
        rows = self.gathered_bytes + self.float_bytes + self.hidden_bytes + self.up_bytes + self.record_bytes
        return rows + self.most_lows * (self.low_bytes + self.low_record_bytes)


def record_blocks(width: int) -> int:
    """Blocks of a row's int8 form, which come in pairs."""
    return -(-(width // BLOCK) // 2) * 2


def row_floats(width: int) -> int:
    """Floats of a row, in whole blocks."""
    return -(-width // BLOCK) * BLOCK


def expert_sizes(mixtures: Sequence[tuple[Experts, ExpertPanels]], max_tokens: int) -> ExpertSizes:
    """The sizes that suffice for the rows of every op."""
    sizes = [_sizes(op, panels, max_tokens) for op, panels in mixtures]
    if not sizes:
        return ExpertSizes()
    return ExpertSizes(*(max(getattr(each, field.name) for each in sizes) for field in fields(ExpertSizes)))


def low_rows(op: Experts) -> list[list[int]]:
    """For each of the low rows of an op's adapters, which adapters read them: both halves if gate and up share an A."""
    found: dict[str, list[int]] = {}
    for number, each in enumerate(op.adapters):
        found.setdefault(each.lora_a[0].tensor, []).append(number)
    return list(found.values())


def _sizes(op: Experts, panels: ExpertPanels, max_tokens: int) -> ExpertSizes:
    pairs, width, inner = max_tokens * op.active, op.up[0].columns, op.up[0].n_rows
    hidden_bytes = 4 * pairs * row_floats(inner)
    ranks = [each.lora_b[0].columns for each in op.adapters]
    rounded = [
        each.lora_b[0].columns
        for each, its_panels in zip(op.adapters, panels.adapters, strict=True)
        if isinstance(its_panels.lora_b, IntegerPanel)
    ]
    return ExpertSizes(
        most_pairs=pairs,
        most_experts=op.count,
        most_active=op.active,
        hidden_floats=row_floats(inner),
        gathered_bytes=pairs * record_blocks(width) * RECORD_BYTES if panels.rounds_source else 0,
        float_bytes=4 * pairs * row_floats(width) if panels.gathers_floats else 0,
        hidden_bytes=hidden_bytes,
        up_bytes=0 if panels.is_gated or panels.gate is None else hidden_bytes,
        record_bytes=pairs * record_blocks(inner) * RECORD_BYTES if panels.rounds_hidden else 0,
        low_bytes=4 * pairs * row_floats(max(ranks, default=0)),
        low_record_bytes=pairs * record_blocks(max(rounded, default=0)) * RECORD_BYTES,
        most_lows=len(low_rows(op)),
    )
