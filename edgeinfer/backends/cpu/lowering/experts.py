"""Calls of mixtures of experts: a router's shares, tokens grouped by expert, and products expert by expert.

In: ops of a model, its packed weights and buffers. Out: calls with their argument records. Owns the tables of panel
addresses, the lists of each worker, and the rows of a pass's pairs of a token and an expert. The number of barriers in
a pass does not depend on the number of experts. LoRA adapters multiply all pairs with A, then with B.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.cpu import catalogue
from edgeinfer.backends.cpu.layout import chosen_records, records
from edgeinfer.backends.cpu.layout.expert_panels import ExpertPanels, low_rows, record_blocks, row_floats
from edgeinfer.backends.cpu.layout.padding import BLOCK, padded
from edgeinfer.backends.cpu.layout.panels import FLOAT_COLUMNS, IntegerPanel, Panel
from edgeinfer.backends.cpu.layout.rounded import RECORD_BYTES, read_records
from edgeinfer.backends.cpu.lowering.matmul import CACHED_BYTES, MatMulLowering, block_tokens
from edgeinfer.backends.cpu.lowering.needs import KernelChoice
from edgeinfer.backends.cpu.memory.buffers import CpuBuffers
from edgeinfer.backends.cpu.memory.packing import PanelWeights
from edgeinfer.backends.cpu.memory.step import StepRecord
from edgeinfer.backends.cpu.workers.tape import NOTHING, Call
from edgeinfer.graph.operands import Weight
from edgeinfer.graph.ops.experts import ExpertAdapter, Experts
from edgeinfer.graph.ops.router import Router
from edgeinfer.graph.step import Floats
from edgeinfer.jit.memory import address, aligned

Bytes = NDArray[np.uint8]
PAGE_BYTES = 4096
GATHERED, FLOATS, HIDDEN, UP, RECORDS = (
    f"experts' {name}" for name in ("records", "floats", "hidden", "up", "hidden records")
)
"""Rows of pairs, under the names that order calls."""
SOURCE = "experts' source"
"""Stands for GATHERED, FLOATS or the source itself, whichever a product reads."""


class MoeLowering:
    """Makes the calls of one model's mixtures."""

    def __init__(
        self,
        choice: KernelChoice,
        packed: PanelWeights,
        buffers: CpuBuffers,
        matmul: MatMulLowering,
        step: StepRecord,
        n_workers: int,
    ) -> None:
        self._choice, self._packed, self._buffers, self._matmul = choice, packed, buffers, matmul
        self._step, self._n_workers = step, n_workers
        sizes = buffers.layout.expert_sizes
        self._sizes = sizes
        shapes = {
            GATHERED: sizes.gathered_bytes,
            FLOATS: sizes.float_bytes,
            HIDDEN: sizes.hidden_bytes,
            UP: sizes.up_bytes,
            RECORDS: sizes.record_bytes,
        }
        for number in range(sizes.most_lows):
            shapes |= {_low(number): sizes.low_bytes, _rounded(_low(number)): sizes.low_record_bytes}
        self._rows: dict[str, Bytes] = {name: aligned((n_bytes,), np.uint8) for name, n_bytes in shapes.items()}
        self._lists = self._of_workers(8 + 24 * sizes.most_experts + 8 * sizes.most_pairs)
        self._own_shares = self._of_workers(4 * row_floats(sizes.most_experts))
        self._own_row = self._of_workers(4 * sizes.hidden_floats)
        self._own_records = self._of_workers(sizes.most_active * record_blocks(sizes.hidden_floats) * RECORD_BYTES)
        self._kept: list[NDArray[np.void] | NDArray[np.int64] | Floats] = []  # what argument records point to
        self.tables: dict[tuple[Weight, ...], NDArray[np.int64]] = {}
        """Addresses of the panels of each expert, by the matrices of an op; they may change between two steps."""

    @property
    def resident_bytes(self) -> int:
        """Bytes of the rows of pairs."""
        return sum(rows.nbytes for rows in self._rows.values())

    def _of_workers(self, n_bytes: int) -> Bytes:
        """Memory of that many bytes for each worker, on pages of its own."""
        return aligned((self._n_workers, padded(n_bytes, PAGE_BYTES)), np.uint8)

    def route(self, op: Router) -> Call:
        args = np.zeros(1, chosen_records.ROUTER)
        args["scores"], args["scores_stride"] = self._buffers.at(op.scores)
        args["out"], args["out_stride"], args["own_stride"] = self._shares(op.out)
        args["count"], args["n_experts"], args["active"] = self._buffers.count(op.scores), op.experts, op.active
        args["sigmoid"], args["mixer"] = op.scoring == "sigmoid", op.scoring == "mixer"
        args["normalised"], args["rated_by"] = op.normalised, op.rated_by
        args["scale"] = op.scale
        args["groups"], args["active_groups"] = op.groups, op.active_groups
        for field, vector in (("bias", op.bias), ("scales", op.scales)):
            args[field] = 0 if vector is None else address(self._buffers.vector(vector, padded(op.experts)))
        scores = frozenset({op.scores})
        if self._matmul.alone:
            return Call(catalogue.ROUTE, args, NOTHING, NOTHING, "all of them", scores)
        share = f"by {self._buffers.rows(op.out).value}"
        return Call(catalogue.ROUTE, args, NOTHING, frozenset({op.out}), share, scores)

    def _shares(self, name: str) -> tuple[int, int, int]:
        """Address of shares, bytes between tokens, bytes between workers' own copies (0: one shared copy)."""
        at, stride = self._buffers.at(name)
        return (address(self._own_shares), stride, self._own_shares.shape[1]) if self._matmul.alone else (at, stride, 0)

    def experts(self, op: Experts) -> list[Call]:
        panels = self._choice.expert_panels(op)
        before = self._matmul.round(op.source) if panels.rounds_source else []
        products = self._gated(op, panels) if panels.is_gated else self._apart(op, panels)
        products += self._adapted(op, panels, is_down=False)
        down = [self._down(op, panels), *self._adapted(op, panels, is_down=True)]
        return [*before, self._group(op, panels), *products, *self._finish(op, panels), *down]

    def chosen(self, op: Experts) -> list[int]:
        """The experts that have tokens; valid from the call that groups them to the next op of its kind."""
        numbers = self._lists[0].view(np.int64)
        found: list[int] = numbers[1 : 1 + numbers[0]].tolist()
        return found

    def confine(self, experts: Sequence[int]) -> None:
        """Restrict the following calls to these of the chosen experts, in this order."""
        numbers = self._lists.view(np.int64)
        numbers[:, 0] = len(experts)
        numbers[:, 1 : 1 + len(experts)] = experts

    def hidden(self, op: Experts) -> Floats:
        """The values of the int8 hidden rows of the last step, expert by expert: float32[pairs, F]."""
        width, numbers = op.up[0].n_rows, self._lists[0].view(np.int64)
        n_padded, n_experts = record_blocks(width), op.count
        kept, found = self._rows[RECORDS].reshape(-1, n_padded * RECORD_BYTES), [np.zeros((0, width), np.float32)]
        for expert in numbers[1 : 1 + numbers[0]]:
            count, start = numbers[1 + n_experts + expert], numbers[1 + 2 * n_experts + expert]
            rows = kept[start : start + count].ravel()
            found.append(read_records(rows, int(count), n_padded)[:, :width])
        return np.concatenate(found)

    def _lists_of(self, args: NDArray[np.void], op: Experts) -> NDArray[np.void]:
        args["lists"], args["lists_stride"] = address(self._lists), self._lists.shape[1]
        args["n_experts"] = op.count
        return args

    def _group(self, op: Experts, panels: ExpertPanels) -> Call:
        args = self._lists_of(np.zeros(1, chosen_records.EXPERT_LISTS), op)
        args["shares"], args["shares_stride"], args["shares_own_stride"] = self._shares(op.shares)
        args["count"], args["most_pairs"] = self._buffers.count(op.source), self._sizes.most_pairs
        if self._matmul.alone:
            return Call(catalogue.GROUP_BY_EXPERT, args, NOTHING, NOTHING, "all of them")
        gathers, writes = {op.shares}, set[str]()
        if panels.rounds_source:
            args["records"], _ = self._buffers.rounded_at(op.source, own=False)
            args["n_padded"], args["tiled"] = record_blocks(op.up[0].columns), self._buffers.tiled(op.source)
            args["gathered"] = address(self._rows[GATHERED])
            gathers, writes = gathers | {f"{op.source} int8"}, writes | {GATHERED}
        if panels.gathers_floats:
            args["floats"], args["float_stride"] = self._buffers.at(op.source)
            args["gathered_floats"] = address(self._rows[FLOATS])
            gathers, writes = gathers | {op.source}, writes | {FLOATS}
        return Call(catalogue.GROUP_BY_EXPERT, args, NOTHING, frozenset(writes), "by pairs", frozenset(gathers))

    def _gated(self, op: Experts, panels: ExpertPanels) -> list[Call]:
        """Gate, up and activation in one product."""
        assert panels.gate is not None
        product = self._integer_product(op, op.gate, panels.gate)
        product["unit_bytes"], product["n_units"] = product["second"], 2 * product["n_units"]
        product["curve"] = _curve(op)
        call = self._call(op, panels.gate, op.gate, product, SOURCE, HIDDEN)
        call.arguments["second_table"] = address(self._table(op.up))
        return [call]

    def _apart(self, op: Experts, panels: ExpertPanels) -> list[Call]:
        """Gate, if there is one, and up as separate products; the call that finishes hidden rows has the activation."""
        return [
            self._call(op, panel, matrices, self._product(op, matrices, panel), SOURCE, name)
            for panel, matrices, name in zip(panels.first, op.stacks[:-1], (HIDDEN, UP), strict=False)
        ]

    def _adapted(self, op: Experts, panels: ExpertPanels, *, is_down: bool) -> list[Call]:
        """What LoRA adapters add to the products with down matrices, or with the others."""
        made, ready, added = list[Call](), list[Call](), list[Call]()
        for number, members in enumerate(low_rows(op)):
            first, its_panels, low = op.adapters[members[0]], panels.adapters[members[0]], _low(number)
            if its_panels.is_down != is_down:
                continue
            product = self._product(op, first.lora_a, its_panels.lora_a)
            made.append(self._call(op, its_panels.lora_a, first.lora_a, product, HIDDEN if is_down else SOURCE, low))
            if not is_down or isinstance(its_panels.lora_b, IntegerPanel):
                ready.append(self._ready(op, first, its_panels.lora_b, low))
            for each in (op.adapters[member] for member in members):
                product = self._product(op, each.lora_b, its_panels.lora_b)
                product["accumulate"] = 1
                to = each.out or (UP if op.gate and each.stack == "up" else HIDDEN)
                added.append(self._call(op, its_panels.lora_b, each.lora_b, product, low, to))
        return [*made, *ready, *added]

    def _ready(self, op: Experts, adapter: ExpertAdapter, lora_b: Panel, low: str) -> Call:
        """The call that scales low rows, unless their sum is scaled later, and rounds them if B is of integers."""
        args, rank = self._lists_of(np.zeros(1, chosen_records.LOW_ROWS), op), adapter.lora_b[0].columns
        args["rows"], args["stride"] = address(self._rows[low]), 4 * row_floats(rank)
        if not adapter.out:
            args["scales"] = self._step.scales_at(adapter.adapter, self._buffers.rows(op.source))
            args["factor"] = adapter.factor
        writes = {low}
        if isinstance(lora_b, IntegerPanel):
            args["rounding"], args["out"] = address(self._rounding(rank)), address(self._rows[_rounded(low)])
            writes.add(_rounded(low))
        return Call(catalogue.READY_LOW_ROWS, args, frozenset({low}), frozenset(writes), "by tokens of experts")

    def _finish(self, op: Experts, panels: ExpertPanels) -> list[Call]:
        """The calls that weigh hidden rows by their shares: for products of integers, then, in place, for the others.

        Each also activates if the products did not.
        """
        kinds = [True] * panels.rounds_hidden + [False] * panels.keeps_hidden
        return [self._finished(op, panels, rounds=rounds) for rounds in kinds]

    def _finished(self, op: Experts, panels: ExpertPanels, *, rounds: bool) -> Call:
        args = self._lists_of(np.zeros(1, chosen_records.EXPERT_HIDDEN), op)
        args["most_pairs"] = self._sizes.most_pairs
        args["gate"], args["up"] = address(self._rows[HIDDEN]), address(self._rows[UP]) if op.gate else 0
        args["stride"] = 4 * row_floats(op.up[0].n_rows)
        args["curve"] = records.PLAIN if panels.is_gated else _curve(op)
        args["scales_source"] = op.scales_source
        if op.biases is not None:
            width = row_floats(op.up[0].n_rows)
            gate, up = (self._bias_rows(weight, op.count, width) for weight in op.biases[:2])
            args["gate_bias"], args["up_bias"] = address(gate), address(up)
        args["scratch"], args["scratch_stride"] = address(self._own_row), self._own_row.shape[1]
        hidden = frozenset({HIDDEN} if panels.is_gated or not op.gate else {HIDDEN, UP})
        if not rounds:
            args["out"] = args["gate"]
            return Call(catalogue.FINISH_HIDDEN, args, NOTHING, frozenset({HIDDEN}), "by pairs", hidden)
        args["rounding"] = address(self._rounding(op.up[0].n_rows))
        if self._matmul.alone:
            args["out"], args["own_stride"] = address(self._own_records), self._own_records.shape[1]
            return Call(catalogue.FINISH_HIDDEN, args, NOTHING, NOTHING, "all of them", hidden)
        args["out"] = address(self._rows[RECORDS])
        return Call(catalogue.FINISH_HIDDEN, args, NOTHING, frozenset({RECORDS}), "by pairs", hidden)

    def _rounding(self, width: int) -> NDArray[np.void]:
        """The record for rounding rows of pairs."""
        args = np.zeros(1, records.ROUND_ROWS)
        args["n_blocks"], args["n_padded"] = width // BLOCK, record_blocks(width)
        self._kept.append(args)
        return args

    def _down(self, op: Experts, panels: ExpertPanels) -> Call:
        """The product that adds each expert's rows to those of its tokens."""
        product = self._product(op, op.down, panels.down)
        product["accumulate"] = 1
        return self._call(op, panels.down, op.down, product, HIDDEN, op.out)

    def _product(self, op: Experts, matrices: tuple[Weight, ...], panel: Panel) -> NDArray[np.void]:
        make = self._integer_product if isinstance(panel, IntegerPanel) else self._float_product
        return make(op, matrices, panel)

    def _integer_product(self, op: Experts, matrices: tuple[Weight, ...], panel: Panel) -> NDArray[np.void]:
        """The fields of a product that are the same for all experts."""
        assert isinstance(panel, IntegerPanel)
        matrix, columns = self._packed.matrix(matrices[0], None), matrices[0].columns
        args = np.zeros(1, records.PRODUCT)
        args["unit_bytes"], args["second"] = 2 * matrix.panel_bytes, matrix.panel_bytes
        args["n_units"] = matrix.n_panels // 2
        args["n_records"], args["n_blocks"] = panel.n_records(columns), record_blocks(columns)
        args["block_tokens"] = block_tokens(record_blocks(columns) * RECORD_BYTES, CACHED_BYTES)
        args["bias"] = address(self._buffers.zeros)
        self._matmul.write_out(args, panel, columns)
        return args

    def _float_product(self, op: Experts, matrices: tuple[Weight, ...], panel: Panel) -> NDArray[np.void]:
        """The same for float panels."""
        matrix, columns = self._packed.matrix(matrices[0], None), matrices[0].columns
        args = np.zeros(1, records.FLOAT_PRODUCT)
        args["panel_bytes"], args["n_units"] = matrix.panel_bytes, matrix.n_panels // 2
        args["n_rounds"] = padded(columns, FLOAT_COLUMNS) // FLOAT_COLUMNS
        args["source_stride"] = 4 * row_floats(columns)
        args["block_tokens"] = block_tokens(4 * row_floats(columns), CACHED_BYTES)
        args["bias"] = address(self._buffers.zeros)
        return args

    def _call(
        self, op: Experts, panel: Panel, matrices: tuple[Weight, ...], product: NDArray[np.void], source: str, to: str
    ) -> Call:
        """The products of all experts, each with `product`'s fields.

        `source`: SOURCE, HIDDEN or low rows; `to`: rows of pairs, or a buffer, to the rows of whose tokens they add.
        """
        args = self._lists_of(np.zeros(1, chosen_records.EXPERT_PRODUCTS), op)
        args["table"], args["ahead"] = address(self._table(matrices)), 1
        scatters, adds = to not in self._rows, bool(product["accumulate"][0])
        product["out_stride"] = self._buffers.at(to)[1] if scatters else 4 * row_floats(matrices[0].n_rows)
        args["out"] = self._buffers.at(to)[0] if scatters else address(self._rows[to])
        args["out_stride"], args["scatters"] = 0 if scatters else product["out_stride"], scatters
        if to == op.out and op.biases is not None:
            args["bias"] = address(self._bias_rows(op.biases[2], len(matrices), 32 * int(product["n_units"][0])))
            args["most_pairs"], args["n_units"] = self._sizes.most_pairs, product["n_units"]
            args["row_stride"] = product["out_stride"]
        reads = self._read(op, panel, product, args, source)
        of_workers = np.repeat(product, 2 * self._n_workers)
        self._kept.append(of_workers)
        args["products"], args["products_stride"] = address(of_workers), 2 * of_workers.itemsize
        is_integer = isinstance(panel, IntegerPanel)
        kernel = catalogue.MULTIPLY_EXPERTS if is_integer else catalogue.MULTIPLY_EXPERT_FLOATS
        called = (
            catalogue.product(panel, self._packed.isa_name)
            if isinstance(panel, IntegerPanel)
            else catalogue.product_float(panel, self._packed.isa_name)
        )
        written = frozenset({to})
        share = f"by {product['n_units'][0]} column pairs" if scatters else "by experts"
        if adds and not scatters:  # workers may share tokens in one product and columns in the other
            share = f"by experts of {source}"
        return Call(kernel, args, written if adds else NOTHING, written, share, reads, called)

    def _read(
        self, op: Experts, panel: Panel, product: NDArray[np.void], args: NDArray[np.void], source: str
    ) -> frozenset[str]:
        """Set where the rows that a product reads lie; returns the names that all workers read."""
        alone = self._matmul.alone
        if not isinstance(panel, IntegerPanel):
            stays = alone and source == SOURCE
            name = op.source if stays else FLOATS if source == SOURCE else source
            args["source"] = self._buffers.at(op.source)[0] if stays else address(self._rows[name])
            args["source_stride"] = 0 if stays else product["source_stride"]
            return frozenset({name})
        args["source_stride"] = int(product["n_blocks"][0]) * RECORD_BYTES
        if not alone or source not in (SOURCE, HIDDEN):
            name = GATHERED if source == SOURCE else RECORDS if source == HIDDEN else _rounded(source)
            args["source"] = address(self._rows[name])
            return frozenset({name})
        if source == HIDDEN:
            args["source"], product["activations_stride"] = address(self._own_records), self._own_records.shape[1]
        else:
            args["source"], product["activations_stride"] = self._buffers.rounded_at(op.source, own=True)
            args["source_stride"] = 0
        return NOTHING

    def _bias_rows(self, weight: Weight, count: int, width: int) -> Floats:
        """Biases of `count` experts as rows of `width` numbers, zero-padded."""
        values = self._buffers.vector(weight, padded(weight.n_rows))[: weight.n_rows].reshape(count, -1)
        rows: Floats = aligned((count, width), np.float32)
        rows[:, : values.shape[1]] = values
        self._kept.append(rows)
        return rows

    def _table(self, matrices: tuple[Weight, ...]) -> NDArray[np.int64]:
        if matrices not in self.tables:
            panels = [self._packed.matrix(weight, None).pieces[0].address for weight in matrices]
            self.tables[matrices] = np.array(panels, np.int64)
        return self.tables[matrices]


def _low(number: int) -> str:
    """The name of low rows, which lie between the products with A and with B of an adapter."""
    return f"experts' low rows {number}"


def _rounded(name: str) -> str:
    """The name of the int8 records of rows."""
    return f"{name} int8"


def _curve(op: Experts) -> int:
    """How an op's products become hidden values."""
    return records.SWIGLU_OAI if op.activation == "swiglu_oai" else records.CURVES[op.activation]
