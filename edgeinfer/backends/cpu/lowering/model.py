"""From ops to kernel calls: places buffers and packed weights, and writes each call's argument record.

In: a ModelSpec, a GGUF file, KV pools and the step record, and sections if other devices take part. Out: the calls of a
tape. Rows of query, key and value buffers hold each head padded to whole vectors, and so do the weight rows that make
them.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from edgeinfer.backends.base import PEAK_LANES, Limits
from edgeinfer.backends.cpu import catalogue
from edgeinfer.backends.cpu.layout import records
from edgeinfer.backends.cpu.layout.padding import BLOCK, LANES, padded
from edgeinfer.backends.cpu.lowering.attention import AttentionLowering
from edgeinfer.backends.cpu.lowering.experts import MoeLowering
from edgeinfer.backends.cpu.lowering.fusion import Sections
from edgeinfer.backends.cpu.lowering.matmul import MatMulLowering
from edgeinfer.backends.cpu.lowering.needs import DEVICE_OPS, KernelChoice
from edgeinfer.backends.cpu.lowering.thresholds import ThresholdLowering
from edgeinfer.backends.cpu.memory.buffers import CpuBuffers
from edgeinfer.backends.cpu.memory.packing import PanelWeights
from edgeinfer.backends.cpu.memory.sequences import CpuKV, CpuStates
from edgeinfer.backends.cpu.memory.step import StepRecord
from edgeinfer.backends.cpu.memory.tables import Rotations
from edgeinfer.backends.cpu.workers.tape import Call
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.op import Op
from edgeinfer.graph.operands import Weight
from edgeinfer.graph.ops.experts import Experts
from edgeinfer.graph.ops.gated_act import GatedAct
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.graph.ops.rms_norm import RMSNorm
from edgeinfer.graph.ops.take_outputs import TakeOutputs
from edgeinfer.graph.step import Batch, Floats
from edgeinfer.jit.code import Kernel
from edgeinfer.jit.memory import address, aligned
from edgeinfer.models.gguf import GGUFFile


class CpuLowering:
    """Builds the calls of one model; owns buffers, scratch and tables that they point into."""

    def __init__(
        self,
        spec: ModelSpec,
        file: GGUFFile,
        limits: Limits,
        packed: PanelWeights,
        kv: CpuKV,
        step: StepRecord,
        n_workers: int,
        sections: Sections | None = None,
    ) -> None:
        self._spec, self._file, self.step = spec, file, step
        self._choice = KernelChoice(spec, file.tensors, sections)
        self.buffers = CpuBuffers(spec, file, limits, step, n_workers, packed.isa_name in catalogue.TILED)
        self._is_whole, self.n_workers = sections is None, n_workers
        self._without_deep = spec.without_deep_rows()
        self._has_deep = self._without_deep is not spec
        self._drops_deep = self._has_deep and sections is None and limits.stored is None
        self._taps: dict[Weight, Floats] = {}
        self.matmul = MatMulLowering(self._choice, packed, self.buffers, step, n_workers)
        self.states = CpuStates(spec, limits)
        self.attention = AttentionLowering(spec, file, limits, kv, self.buffers, step, n_workers, packed.isa_name)
        self.experts = MoeLowering(self._choice, packed, self.buffers, self.matmul, step, n_workers)
        self.thresholds = ThresholdLowering(spec.ops(), self.buffers, n_workers)
        found = packed.records
        self.records = None if found is None else found.layers.lower(found.shared, packed.isa_name, self)
        self.peaks: Floats = aligned(self.buffers.layout.peaks_shape, np.float32)

    @property
    def resident_bytes(self) -> int:
        """Bytes of buffers and tables."""
        parts = self.attention, self.buffers, self.experts, self.records
        n_bytes = sum(part.resident_bytes for part in parts if part is not None)
        return n_bytes + self.peaks.nbytes + self.states.nbytes

    @property
    def rotations(self) -> Rotations:
        """The rotary tables, which are filled as positions are reached."""
        return self.attention.rotations

    def hidden(self, op: Experts) -> Floats:
        """The values of the int8 hidden rows of experts, after the op and before the next one of its kind."""
        return self.experts.hidden(op)

    def adds_rows(self, batch: Batch) -> bool:
        """Whether a pass has ops that add further parts of its rows, which one without rows does not need."""
        return self._has_deep and (batch.rows is not None or not self._drops_deep)

    def calls(
        self, alone: bool = False, unused: frozenset[int] = frozenset(), *, within: bool = False, deep: bool = False
    ) -> list[tuple[Op, list[Call]]]:
        """The calls of each op of the model, in order; a fused op has none of its own.

        `alone`: for passes of one token, whose activations every worker rounds for itself, which needs no barriers.
        `unused`: LoRA adapters that are left out; only of a model in one section, without record layers. `within`: for
        passes that state budgets of attention. `deep`: for passes with rows of which parts enter after later layers.
        """
        choice, spec = self._choice, self._without_deep if self._drops_deep and not deep else self._spec
        if unused or spec is not self._spec:
            choice = KernelChoice(spec.without_adapters(unused), self._file.tensors)
        ops, fusion = choice.ops, choice.fusion
        taken = {norm: take for take, norm in fusion.taken_rows.items()}
        paired = {place for pair in fusion.gated.values() for place in pair}
        matmul = self.matmul
        matmul.alone, self.attention.within = alone, within
        matmul.forget()
        found: list[tuple[Op, list[Call]]] = []
        for place, op in enumerate(ops):
            if place in choice.sections.stops:
                matmul.forget()  # other devices may have written values
            if self.records is not None and self.records.has(place):
                calls = self._written(self.records.calls(place), *op.writes)
            elif place in fusion.taken_rows or place in paired:
                calls = matmul.round(op.source) if isinstance(op, MatMul) else []
            elif isinstance(op, RMSNorm) and place in fusion.rounded_norms:
                take = ops[taken[place]] if place in taken else None
                calls = matmul.rounded_norm(op, take.source if isinstance(take, TakeOutputs) else None)
            elif isinstance(op, GatedAct) and place in fusion.gated:
                gate, up = (ops[pair] for pair in fusion.gated[place])
                assert isinstance(gate, MatMul)
                assert isinstance(up, MatMul)
                calls = self._written(matmul.gated(gate, up, op), op.out)
            else:
                calls = self._lower(op)
            found.append((op, calls))
        if self._is_whole:
            found[-1][1].append(self._find_peaks())
        multiplying = [call for _, calls in found for call in calls if call.arguments.dtype == records.PRODUCT]
        for call, following in pairwise(multiplying):
            call.arguments["next"] = address(following.arguments)
        return (
            [(op, [self._placed(call) for call in calls]) for op, calls in found] if self.buffers.any_shared else found
        )

    def _placed(self, call: Call) -> Call:
        """A call with memory in place of buffers that share it; the rows of another buffer count as another share."""
        buffers = self.buffers
        found = map(buffers.shared_as, call.reads | call.writes | call.gathers)
        own = sorted({each for each in found if each is not None})
        reads, writes, gathers = (
            frozenset(piece for name in names for piece in buffers.pieces(name))
            for names in (call.reads, call.writes, call.gathers)
        )
        share = f"{call.share} of{','.join(own)}" if own else call.share
        return replace(call, reads=reads, writes=writes, gathers=gathers, share=share)

    def advances(self) -> list[Call]:
        """The calls that advance a state by tokens of the last pass; none for a model without states."""
        found = ((DEVICE_OPS.of(op).advances, op) for op in self._choice.ops)
        return [call for advances, op in found if advances is not None for call in advances(self, op)]

    def taps(self, weight: Weight, width: int, n_taps: int) -> Floats:
        """The kernel of a convolution by token: float32[4, padded width], zeros for taps that it does not have."""
        if weight not in self._taps:
            values = self.buffers.vector(weight, padded(width * n_taps))[: width * n_taps]
            by_token: Floats = aligned((4, padded(width)), np.float32)
            by_token[4 - n_taps :, :width] = values.reshape(width, n_taps).T
            self._taps[weight] = by_token
        return self._taps[weight]

    def _lower(self, op: Op) -> list[Call]:
        """The calls of an op that is not fused into another one."""
        return self._written(DEVICE_OPS.of(op).calls(self, op), *op.writes)

    def _written(self, calls: list[Call], *names: str) -> list[Call]:
        for name in names:
            self.matmul.forget(name)
        return calls

    def by_tokens(self, name: str) -> str:
        """The share of calls that give each worker rows of a buffer."""
        return f"by {self.buffers.rows(name).value}"

    def by_columns(self, name: str) -> str:
        """The share of calls that give each worker columns of a buffer."""
        return f"by {self.buffers.arrays[name].shape[1] // BLOCK} column pairs"

    def columns(self, kernel: Kernel, source: str, other: str, out: str, cap: float = 0.0) -> Call:
        """The call of an element-wise kernel."""
        args = np.zeros(1, records.COLUMNS)
        args["source"], (args["other"], args["other_stride"]) = self.buffers.at(source)[0], self.buffers.at(other)
        args["out"], args["stride"] = self.buffers.at(out)
        args["n_vectors"] = self.buffers.arrays[out].shape[1] // LANES
        args["count"], args["cap"] = self.buffers.count(out), cap
        return Call(kernel, args, frozenset({source, other, out}), frozenset({out}), self.by_columns(out))

    def _find_peaks(self) -> Call:
        """The call that finds the highest logits, after the last op."""
        name = self._spec.logits
        args = np.zeros(1, records.PEAKS)
        args["source"], args["stride"] = self.buffers.at(name)
        args["out"], args["out_stride"] = address(self.peaks), self.peaks.strides[0]
        args["width"], args["count"] = self._spec.output_width, self.buffers.count(name)
        share = f"by {self.peaks.shape[1] // PEAK_LANES} blocks"
        return Call(catalogue.FIND_PEAKS, args, frozenset({name}), frozenset({"peaks"}), share)
