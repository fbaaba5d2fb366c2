"""Calls of feed-forward layers with inactive neurons: the activation, the list of active neurons, the rest.

In: sparse layers, the addresses of their shared scales, the lowering of the model. Out: calls. Results equal those of
whole products bit for bit; between the list of active neurons and the rest, the caller must supply the addresses of the
listed neurons' records. Owns the lists. If more neurons are active than fit in memory, they are processed in turns, by
blocks of 32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.cpu.catalogue import ACT
from edgeinfer.backends.cpu.layout.padding import BLOCK, LANES, padded
from edgeinfer.backends.cpu.layout.panels import PANEL_ROWS, UNIT_ROWS
from edgeinfer.backends.cpu.layout.records import COLUMNS
from edgeinfer.backends.cpu.neurons import catalogue
from edgeinfer.backends.cpu.neurons.kernels import records
from edgeinfer.backends.cpu.neurons.layers import SparseLayer
from edgeinfer.backends.cpu.workers.tape import NOTHING, Call
from edgeinfer.graph.ops.act import Act
from edgeinfer.graph.step import Floats, Int32s
from edgeinfer.jit.memory import address, aligned

if TYPE_CHECKING:
    from edgeinfer.backends.cpu.lowering.model import CpuLowering

FLOAT_BYTES = 4
MARKS, LISTED, SUMS = "active marks", "active neurons", "column sums"
"""Data between calls, under the names that order calls."""


@dataclass(frozen=True, slots=True)
class FeedArguments:
    """Arguments of the calls after the list, which change for each turn: see `SparseFfnLowering.take`."""

    number: int
    layer: SparseLayer
    chosen: NDArray[np.void] | None
    rounding: NDArray[np.void] | None
    columns: NDArray[np.void]
    hidden: int
    """Address of the hidden values."""


class SparseFfnLowering:
    """Makes the calls of one model's sparse layers; without any it has none."""

    def __init__(
        self, layers: Sequence[SparseLayer], shared: Mapping[int, int], isa_name: str, lowering: CpuLowering
    ) -> None:
        """`shared`: address of the shared scales, by layer number, of each layer that has some."""
        self.layers, self._shared, self._isa_name = tuple(layers), shared, isa_name
        self._buffers, self._matmul, self._thresholds = lowering.buffers, lowering.matmul, lowering.thresholds
        buffers, n_workers = lowering.buffers, lowering.n_workers
        self._roles = {
            place: (number, layer)
            for number, layer in enumerate(layers)
            for place in range(layer.place, layer.down_place + 1)
        }
        most = padded(max((layer.layout.n_neurons for layer in layers), default=0), BLOCK)
        self._marks = aligned((most // BLOCK,), np.uint32)
        self._listed: Int32s = aligned((most,), np.int32)
        self._n_listed = aligned((1,), np.int64)
        self._n_taken = aligned((1,), np.int64)
        self._rows, self._columns = (aligned((most,), np.int64) for _ in range(2))
        widths = [padded(layer.layout.width, UNIT_ROWS) for layer in layers]
        n_rows = max((len(buffers.arrays[layer.act.out]) for layer in layers), default=0)
        self._sums: Floats = aligned((n_rows, 2 * max(widths, default=0)), np.float32)
        panels = [layer.layout.up.panel_bytes(layer.layout.width) for layer in layers if layer.layout.up is not None]
        self._scratch = aligned((n_workers, padded(max(panels, default=0), 4096)), np.uint8)
        self._feeds: dict[int, FeedArguments] = {}

    @property
    def resident_bytes(self) -> int:
        """Bytes of lists, sums and scratch."""
        held = self._marks, self._listed, self._rows, self._columns, self._sums, self._scratch
        return sum(array.nbytes for array in held)

    def has(self, place: int) -> bool:
        """Whether the op at a place belongs to a sparse layer."""
        return place in self._roles

    def feed(self, calls: Sequence[Call]) -> FeedArguments | None:
        """The arguments to fill in before these calls of an op run; None if there are none."""
        return self._feeds.get(address(calls[0].arguments)) if calls else None

    def listed(self) -> Int32s:
        """The active neurons of the layer whose list was made last, in order: int32[n], a copy."""
        return self._listed[: self._n_listed[0]].copy()

    def n_tokens(self, feed: FeedArguments) -> int:
        """Tokens of the step."""
        return self._buffers.n_rows(feed.layer.activated)

    def n_firing(self, feed: FeedArguments) -> int:
        """Firing neurons, summed over the tokens of the step."""
        name = feed.layer.activated
        return int(np.count_nonzero(self._buffers.arrays[name][: self._buffers.n_rows(name)]))

    def take(
        self, feed: FeedArguments, first_block: int, stop_block: int, places: slice, addresses: NDArray[np.int64]
    ) -> None:
        """Make the calls process the listed neurons `places`, all those of these blocks; `addresses`: of their records.

        Blocks are taken in order, from 0 to the layout's `n_blocks`.
        """
        layout, count = feed.layer.layout, len(addresses)
        self._n_taken[0] = count
        self._columns[:count] = addresses + layout.column_at
        neurons, n_blocks = address(self._listed) + 4 * places.start, stop_block - first_block
        end = min(BLOCK * stop_block, self._buffers.arrays[feed.layer.act.out].shape[1])
        if feed.chosen is not None:
            self._rows[:count] = addresses
            self._rows[count : padded(count, PANEL_ROWS)] = addresses[:1]
            feed.chosen["neurons"] = neurons
            feed.chosen["begin"], feed.chosen["end"] = BLOCK * first_block, end
        if feed.rounding is not None:
            feed.rounding["source"] = feed.hidden + FLOAT_BYTES * BLOCK * first_block
            feed.rounding["n_blocks"] = max(0, min(stop_block, layout.n_neurons // BLOCK) - first_block)
            feed.rounding["n_padded"] = n_blocks
        feed.columns["neurons"], feed.columns["first_block"], feed.columns["n_blocks"] = neurons, first_block, n_blocks
        feed.columns["is_first"], feed.columns["is_last"] = first_block == 0, stop_block == layout.n_blocks

    def calls(self, place: int) -> list[Call]:
        """The calls of an op of a sparse layer."""
        number, layer = self._roles[place]
        if place == layer.place:
            before = self._matmul.product(layer.gate)
            return before if layer.up is None else [*before, *self._matmul.round(layer.up.source)]
        if place == layer.act_place:
            return [self._activate(layer), *self._list(layer)]
        return self._rest(number, layer) if place == layer.down_place else []

    def _activate(self, layer: SparseLayer) -> Call:
        """The activation alone; in place if there is a gate."""
        source = layer.act.source if isinstance(layer.act, Act) else layer.act.gate
        if layer.act.threshold:
            return self._thresholds.activate(layer.act, source, layer.activated, self._by_columns(layer))
        args = np.zeros(1, COLUMNS)
        args["source"] = args["other"] = address(self._buffers.arrays[source])
        args["out"], args["stride"] = self._buffers.at(layer.activated)
        args["n_vectors"] = self._buffers.arrays[layer.activated].shape[1] // LANES
        args["count"] = self._buffers.count(layer.activated)
        names = frozenset({source, layer.activated})
        out = frozenset({layer.activated})
        return Call(ACT[layer.act.activation], args, names, out, self._by_columns(layer))

    def _by_columns(self, layer: SparseLayer) -> str:
        return f"by {self._buffers.arrays[layer.activated].shape[1] // BLOCK} column pairs"

    def _list(self, layer: SparseLayer) -> list[Call]:
        """Marking active neurons, and listing them."""
        args = np.zeros(1, records.ACTIVE)
        args["source"], args["stride"] = self._buffers.at(layer.activated)
        args["n_vectors"] = self._buffers.arrays[layer.activated].shape[1] // LANES
        args["count"] = self._buffers.count(layer.activated)
        args["marks"], args["neurons"] = address(self._marks), address(self._listed)
        args["n_active"] = address(self._n_listed)
        marks, listed = frozenset({MARKS}), frozenset({LISTED})
        share, source = self._by_columns(layer), frozenset({layer.activated})
        return [
            Call(catalogue.MARK_ACTIVE, args, source, marks, share),
            Call(catalogue.LIST_ACTIVE, args, NOTHING, listed, "by the first", marks),
        ]

    def _rest(self, number: int, layer: SparseLayer) -> list[Call]:
        """Hidden values and the down product of the neurons that `take` selects."""
        self._matmul.forget(layer.down.source)  # each turn rounds its own
        chosen = None if layer.up is None else self._chosen(layer)
        rounding = self._matmul.round(layer.down.source) if layer.layout.down.has_scales else []
        columns = self._columns_of(number, layer)
        calls = [*([] if chosen is None else [chosen]), *rounding, columns]
        self._feeds[address(calls[0].arguments)] = FeedArguments(
            number,
            layer,
            None if chosen is None else chosen.arguments,
            rounding[0].arguments if rounding else None,
            columns.arguments,
            self._buffers.at(layer.down.source)[0],
        )
        self._matmul.forget(layer.down.source)
        return calls

    def _chosen(self, layer: SparseLayer) -> Call:
        panel, up, buffers = layer.layout.up, layer.up, self._buffers
        assert panel is not None
        assert up is not None
        args, alone = np.zeros(1, records.CHOSEN), self._matmul.alone
        args["rows"], args["n_chosen"] = address(self._rows), address(self._n_taken)
        args["n_records"] = panel.n_records(layer.layout.width)
        args["scratch"], args["scratch_stride"] = address(self._scratch), self._scratch.strides[0]
        args["n_blocks"] = buffers.layout.padded_blocks(up.source)
        args["activations"], args["activations_stride"] = buffers.rounded_at(up.source, alone)
        args["tiled"] = 0 if alone else buffers.tiled(up.source)
        args["activated"], args["activated_stride"] = buffers.at(layer.activated)
        args["out"], args["out_stride"] = buffers.at(layer.act.out)
        args["count"] = buffers.count(layer.act.out)
        if up.bias is not None:
            args["bias"] = address(buffers.vector(up.bias, padded(layer.layout.n_neurons, BLOCK)))
        reads = frozenset({layer.activated, LISTED}) | (NOTHING if alone else frozenset({f"{up.source} int8"}))
        kernel = catalogue.chosen_product(panel, self._isa_name)
        return Call(kernel, args, NOTHING, frozenset({layer.act.out}), "by active neurons", reads)

    def _columns_of(self, number: int, layer: SparseLayer) -> Call:
        layout, down, buffers = layer.layout, layer.down, self._buffers
        args, alone = np.zeros(1, records.COLUMN_PRODUCT), self._matmul.alone
        args["columns"], args["n_chosen"] = address(self._columns), address(self._n_taken)
        gathers = frozenset({LISTED})
        if layout.down.has_scales:
            args["scales"] = self._shared[number]
            args["scales_stride"] = 2 * padded(layout.width, UNIT_ROWS)
            args["minima"] = self._shared[number] + layout.n_blocks * int(args["scales_stride"][0])
            args["activations"], args["activations_stride"] = buffers.rounded_at(down.source, alone)
            args["tiled"] = 0 if alone else buffers.tiled(down.source)
            gathers |= NOTHING if alone else frozenset({f"{down.source} int8"})
        else:
            args["activations"], args["activations_stride"] = buffers.at(down.source)
            gathers |= {down.source}
        args["n_units"] = padded(layout.width, UNIT_ROWS) // UNIT_ROWS
        args["sums"], args["sums_stride"] = address(self._sums), self._sums.strides[0]
        args["out"], args["out_stride"] = buffers.at(down.out)
        args["count"], args["accumulate"] = buffers.count(down.source), down.accumulate
        args["bias"] = address(buffers.zeros)
        if down.bias is not None:
            vector = buffers.vector(down.bias, padded(layout.width, UNIT_ROWS))
            args["bias"], args["bias_stride"] = address(vector), UNIT_ROWS * FLOAT_BYTES
        out = frozenset({down.out})
        reads, share = out if down.accumulate else NOTHING, f"by {int(args['n_units'][0])} column pairs"
        return Call(catalogue.column_product(layout.down, self._isa_name), args, reads, out | {SUMS}, share, gathers)


def turns(neurons: Int32s, n_blocks: int, most: int) -> list[tuple[int, int, slice]]:
    """Blocks (first, stop) and places of the listed neurons in them, at most `most` (32 at least) at a time.

    Covers all blocks. neurons: int32[n] in order.
    """
    if len(neurons) <= most:
        return [(0, n_blocks, slice(0, len(neurons)))]
    found: list[tuple[int, int, slice]] = []
    first = start = end = 0
    for block, stop in enumerate(np.searchsorted(neurons, BLOCK * np.arange(1, n_blocks + 1)).tolist()):
        if stop - start > most:
            found.append((first, block, slice(start, end)))
            first, start = block, end
        end = stop
    found.append((first, n_blocks, slice(start, end)))
    return found
