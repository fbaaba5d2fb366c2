"""Calls of products: of integer panels with rounded activations, of float panels, of a gate and an up matrix at once.

In: products of a model, its packed weights and buffers. Out: calls with their argument records, preceded by the
rounding of the activations that they read, unless these are rounded already.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.cpu import catalogue
from edgeinfer.backends.cpu.layout import records
from edgeinfer.backends.cpu.layout.bfloats import PRODUCT_SCRATCH_BYTES
from edgeinfer.backends.cpu.layout.books import BOOKS
from edgeinfer.backends.cpu.layout.padding import BLOCK, LANES, padded
from edgeinfer.backends.cpu.layout.panels import FLOAT_COLUMNS, PANEL_ROWS, FloatPanel, IntegerPanel, plain_panel
from edgeinfer.backends.cpu.layout.rounded import RECORD_BYTES, TILE
from edgeinfer.backends.cpu.lowering.needs import KernelChoice
from edgeinfer.backends.cpu.memory.buffers import CpuBuffers
from edgeinfer.backends.cpu.memory.packing import PanelMatrix, PanelPiece, PanelWeights
from edgeinfer.backends.cpu.memory.step import StepRecord
from edgeinfer.backends.cpu.workers.tape import NOTHING, Call
from edgeinfer.graph.ops.gated_act import GatedAct
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.graph.ops.rms_norm import RMSNorm
from edgeinfer.jit.memory import address, aligned

FLOAT_BYTES = 4
CACHED_BYTES = 1 << 19
"""Bytes of rounded activations that stay in a core's own cache beside the panels that stream past them."""
TILED_BYTES = 1 << 21
"""The same where panels are unpacked for each block of tokens: it is less often, but activations come from farther."""
MOST_CONVERTED_BYTES = 3 << 18
"""Bytes of two panels as float32 that a core's second cache holds."""


class MatMulLowering:
    """Makes the calls of one model's products; owns the scratch of tile kernels."""

    def __init__(
        self, choice: KernelChoice, packed: PanelWeights, buffers: CpuBuffers, step: StepRecord, n_workers: int
    ) -> None:
        self._choice, self._packed, self._buffers = choice, packed, buffers
        self._step, self._n_workers = step, n_workers
        self._fresh: set[str] = set()  # buffers whose int8 form is up to date
        self._unpacked: NDArray[np.uint8] | None = None
        self._plain: NDArray[np.uint8] | None = None
        self._split: NDArray[np.uint8] | None = None
        self._kept: list[NDArray[np.uint8]] = []  # what arguments point to
        self.alone = False
        """Whether calls are for passes of one token, whose activations every worker rounds for itself."""

    def forget(self, name: str | None = None) -> None:
        """Mark the int8 form of a buffer, or of all, as out of date."""
        if name is None:
            self._fresh.clear()
        else:
            self._fresh.discard(name)

    def _matrix(self, op: MatMul) -> PanelMatrix:
        return self._packed.matrix(op.weight, self._buffers.heads.get(op.out))

    def round(self, name: str) -> list[Call]:
        """The call that makes the int8 form of a buffer, unless it is up to date."""
        if name in self._fresh:
            return []
        args = self._round_arguments(name)
        args["source"], args["source_stride"] = self._buffers.at(name)
        args["count"] = self._buffers.count(name)
        return [self._round_call(name, name, args)]

    def rounded_norm(self, op: RMSNorm, taken_from: str | None) -> list[Call]:
        """The call that normalises and rounds at once; with `taken_from`, only the rows whose logits are wanted."""
        source = taken_from or op.source
        args = self._round_arguments(op.out)
        args["source"], args["source_stride"] = self._buffers.at(source)
        args["rows"] = self._step.outputs_at if taken_from else 0
        args["weight"] = address(self._buffers.norm_vector(op.weight, op.width, padded(op.width, BLOCK)))
        args["count"], args["width"], args["epsilon"] = self._buffers.count(op.out), op.width, op.epsilon
        return [self._round_call(op.out, source, args, bool(taken_from))]

    def _round_arguments(self, name: str) -> NDArray[np.void]:
        """The output fields for the int8 form of a buffer."""
        n_blocks = self._buffers.layout.n_blocks(name)
        n_padded = self._buffers.layout.padded_blocks(name)
        args = np.zeros(1, records.ROUND_ROWS)
        args["n_blocks"], args["n_padded"] = n_blocks, n_padded
        args["out"], args["out_stride"] = self._buffers.rounded_at(name, self.alone)
        args["tiled"] = self._buffers.tiled(name)
        return args

    def _round_call(self, name: str, source: str, args: NDArray[np.void], takes_rows: bool = False) -> Call:
        self._fresh.add(name)
        sources, out = frozenset({source}), frozenset({f"{name} int8"})
        if self.alone:
            return Call(catalogue.ROUND_ROWS, args, NOTHING, NOTHING, "all of them", sources)
        reads, gathers = (NOTHING, sources) if takes_rows else (sources, NOTHING)
        return Call(catalogue.ROUND_ROWS, args, reads, out, f"by {self._buffers.rows(name).value}", gathers)

    def product(self, op: MatMul) -> list[Call]:
        """The calls of a product, after the rounding if weights are integers."""
        matrix = self._matrix(op)
        if not isinstance(matrix.panel, IntegerPanel):
            return [self._float_product(op, matrix, piece) for piece in matrix.pieces]
        before = self.round(op.source)
        return [*before, *(call for piece in matrix.pieces for call in self._integer_product(op, matrix, piece))]

    def _integer_product(self, op: MatMul, matrix: PanelMatrix, piece: PanelPiece) -> list[Call]:
        args, reads = self._product_arguments(op, matrix, piece)
        args["unit_bytes"], args["second"] = 2 * matrix.panel_bytes, matrix.panel_bytes
        args["n_units"], args["accumulate"] = piece.n_panels // 2, op.accumulate
        args["ahead"] = 1
        self._to_columns(args, op.out, piece)
        args["bias"], args["bias_stride"] = self._bias(op, matrix, piece)
        out = frozenset({op.out})
        own = out if op.accumulate else NOTHING
        return self._multiplied(op, args, own, out, _share(op, matrix, piece, 2), reads, piece.bundle)

    def gated(self, gate: MatMul, up: MatMul, op: GatedAct) -> list[Call]:
        """Both products and the activation in one call."""
        gates, ups = self._matrix(gate), self._matrix(up)
        assert isinstance(gates.panel, IntegerPanel)
        calls: list[Call] = []
        for piece, second in zip(gates.pieces, ups.pieces, strict=True):
            args, reads = self._product_arguments(gate, gates, piece)
            args["unit_bytes"], args["second"] = gates.panel_bytes, second.address - piece.address
            args["n_units"], args["curve"] = piece.n_panels, records.CURVES[op.activation]
            args["ahead"] = 1
            self._to_columns(args, op.out, piece)
            args["bias"] = address(self._buffers.zeros)
            share, out = _share(gate, gates, piece, 1), frozenset({op.out})
            calls += self._multiplied(gate, args, NOTHING, out, share, reads, piece.bundle)
        return calls

    def _to_columns(self, args: NDArray[np.void], name: str, piece: PanelPiece) -> None:
        """Where a piece's rows go: columns of a buffer."""
        start, args["out_stride"] = self._buffers.at(name)
        args["out"] = start + piece.first * PANEL_ROWS * FLOAT_BYTES

    def _multiplied(
        self,
        op: MatMul,
        args: NDArray[np.void],
        own: frozenset[str],
        out: frozenset[str],
        share: str,
        reads: frozenset[str],
        bundle: int | None,
    ) -> list[Call]:
        """The calls of a product: whole tiles of tokens in tile registers, if there are any, and the others."""
        panel, isa_name = self._choice.panel(op), self._packed.isa_name
        assert isinstance(panel, IntegerPanel)
        if not self.alone:
            share += " or tokens"  # the kernel decides which tokens; no other call has the same share
        rest = Call(catalogue.product(panel, isa_name), args, own, out, share, reads, bundle=bundle)
        tiles = self._choice.tiles(op, isa_name)
        self.write_out(args, panel, op.weight.columns)
        if self.alone or tiles is None:
            return [rest]
        args["tiled"] = 1
        of_tiles, scratch = args.copy(), self._tile_memory()
        of_tiles["unpacked"], of_tiles["unpacked_stride"] = address(scratch), scratch.strides[0]
        of_tiles["block_tokens"] = block_tokens(int(args["n_blocks"][0]) * RECORD_BYTES, TILED_BYTES)
        return [Call(tiles, of_tiles, own, out, share, reads, bundle=bundle), rest]

    def _tile_memory(self) -> NDArray[np.uint8]:
        """Scratch of each worker, shared by all products."""
        if self._unpacked is None:
            n_bytes = padded(records.TILE_SCRATCH_BYTES, 4096)
            self._unpacked = aligned((self._n_workers, n_bytes), np.uint8)
        return self._unpacked

    def _convert(self, args: NDArray[np.void], op: MatMul) -> None:
        """Let a product of many tokens convert panels to float32, unless they are too long for that."""
        n_bytes = 2 * FloatPanel("f32").panel_bytes(op.weight.columns)
        if n_bytes <= MOST_CONVERTED_BYTES:
            wide = self._plain_memory(n_bytes)
            args["scratch"], args["scratch_stride"] = address(wide), wide.strides[0]
            args["block_tokens"] = block_tokens(self._buffers.at(op.source)[1], TILED_BYTES)

    def _split_memory(self) -> NDArray[np.uint8]:
        """Scratch of each worker for products of split floats, shared by all of them."""
        if self._split is None:
            self._split = aligned((self._n_workers, padded(PRODUCT_SCRATCH_BYTES, 4096)), np.uint8)
        return self._split

    def write_out(self, args: NDArray[np.void], panel: IntegerPanel, columns: int) -> None:
        """Let a product of several tokens write panels out as bytes, if their codes are entries of a book."""
        if panel.book in BOOKS and not self.alone:
            plain = self._plain_memory(2 * plain_panel(panel).panel_bytes(columns))
            args["unpacked"], args["unpacked_stride"] = address(plain), plain.strides[0]
            args["block_tokens"] = block_tokens(int(args["n_blocks"][0]) * RECORD_BYTES, TILED_BYTES)

    def _plain_memory(self, n_bytes: int) -> NDArray[np.uint8]:
        """Memory of each worker for two panels written out; calls may share it, larger ones replace it."""
        if self._plain is None or self._plain.shape[1] < n_bytes:
            self._plain = aligned((self._n_workers, padded(n_bytes, 4096)), np.uint8)
            self._kept.append(self._plain)
        return self._plain

    def _product_arguments(
        self, op: MatMul, matrix: PanelMatrix, piece: PanelPiece
    ) -> tuple[NDArray[np.void], frozenset[str]]:
        """A record with what a product reads, and the int8 form that it gathers (none if workers have their own)."""
        assert isinstance(matrix.panel, IntegerPanel)
        n_padded = self._buffers.layout.padded_blocks(op.source)
        args = np.zeros(1, records.PRODUCT)
        args["weights"], args["n_records"] = piece.address, matrix.panel.n_records(op.weight.columns)
        args["n_blocks"], args["count"] = n_padded, self._buffers.count(op.out)
        args["activations"], args["activations_stride"] = self._buffers.rounded_at(op.source, self.alone)
        args["block_tokens"] = block_tokens(n_padded * RECORD_BYTES, CACHED_BYTES)
        return args, NOTHING if self.alone else frozenset({f"{op.source} int8"})

    def _float_product(self, op: MatMul, matrix: PanelMatrix, piece: PanelPiece) -> Call:
        assert isinstance(matrix.panel, FloatPanel)
        args = np.zeros(1, records.FLOAT_PRODUCT)
        args["weights"], args["panel_bytes"] = piece.address, matrix.panel_bytes
        args["n_units"] = piece.n_panels // 2
        args["n_rounds"] = padded(op.weight.columns, FLOAT_COLUMNS) // FLOAT_COLUMNS
        args["source"], args["source_stride"] = self._buffers.at(op.source)
        args["block_tokens"] = block_tokens(self._buffers.at(op.source)[1], CACHED_BYTES)
        self._to_columns(args, op.out, piece)
        args["count"], args["accumulate"] = self._buffers.count(op.out), op.accumulate
        args["bias"], args["bias_stride"] = self._bias(op, matrix, piece)
        out = frozenset({op.out})
        reads, share = out if op.accumulate else NOTHING, _share(op, matrix, piece, 2)
        split = self._choice.split(op, self._packed.isa_name)
        if split is not None:
            share += " or tiles of tokens"
            scratch = self._split_memory()
            args["scratch"], args["scratch_stride"] = address(scratch), scratch.strides[0]
        elif not self.alone:
            share += " or tokens of floats"
            self._convert(args, op)
        kernel = split or catalogue.product_float(matrix.panel, self._packed.isa_name)
        return Call(kernel, args, reads, out, share, frozenset({op.source}), bundle=piece.bundle)

    def _bias(self, op: MatMul, matrix: PanelMatrix, piece: PanelPiece) -> tuple[int, int]:
        """Address of the bias of a piece and bytes between pairs of panels."""
        if op.bias is None:
            return address(self._buffers.zeros), 0
        vector = self._buffers.vector(op.bias, matrix.n_panels * LANES, self._buffers.heads.get(op.out))
        return address(vector) + piece.first * LANES * FLOAT_BYTES, 2 * LANES * FLOAT_BYTES


def _share(op: MatMul, matrix: PanelMatrix, piece: PanelPiece, panels: int) -> str:
    """How workers share a product, `panels` at a time; one in several pieces shares its work like no other call."""
    n_units = matrix.n_panels // panels
    whole = f"by {n_units} column pairs" if panels == 2 else f"by {n_units} columns"
    return whole if piece.n_panels == matrix.n_panels else f"{whole} in pieces of {op.weight.tensor}"


def block_tokens(token_bytes: int, cached_bytes: int) -> int:
    """Tokens, in whole tiles, whose activations take about that many bytes."""
    return max(TILE, cached_bytes // token_bytes // TILE * TILE)
