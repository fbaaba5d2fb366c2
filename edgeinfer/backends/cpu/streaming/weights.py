"""Weights of which some bundles stay in memory and the others are present only while they are needed.

In: the contents of a bundle file, which bundles stay, a window for the others. Out: pieces of matrices with the address
that they have, or will have once they are read. Between two steps a bundle may become pinned or streamed: `places`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edgeinfer.backends.cpu.bundles.contents import Contents
from edgeinfer.backends.cpu.layout.panels import Panel, panel_for
from edgeinfer.backends.cpu.lowering.sparse_layers import SparseLayer
from edgeinfer.backends.cpu.memory.packing import HeadLayout, PanelPiece
from edgeinfer.graph.operands import Weight
from edgeinfer.models.gguf import TensorInfo
from edgeinfer.models.quants import format_of
from edgeinfer.offload.bundle import Bundle, Key, PanelRange


@dataclass(frozen=True, slots=True)
class StreamedMatrix:
    """A matrix, in the pieces that its bundles cut it into."""

    panel: Panel
    n_panels: int
    panel_bytes: int
    pieces: tuple[PanelPiece, ...]


class StreamedWeights:
    """All matrices of a model. `places`: where each bundle is or will be; those of experts have no place yet."""

    def __init__(
        self,
        contents: Contents,
        tensors: Mapping[str, TensorInfo],
        isa_name: str,
        places: Mapping[int, int],
        held_bytes: int,
    ) -> None:
        self.isa_name, self.resident_bytes = isa_name, held_bytes
        self._contents, self._tensors, self._places = contents, tensors, places
        self._parts: dict[Key, list[tuple[Bundle, PanelRange]]] = {key: [] for key in contents.matrices}
        self.layers: Sequence[SparseLayer] = contents.layers
        self.shared: Mapping[int, int] = {
            bundle.run.layer: places[bundle.number]
            for bundle in contents.bundles
            if bundle.run is not None and not bundle.run.count
        }
        for bundle in contents.bundles:
            for part in bundle.parts:
                self._parts[part.key].append((bundle, part))

    def matrix(self, weight: Weight, heads: HeadLayout | None) -> StreamedMatrix:
        """The pieces of a weight."""
        key = (weight, heads.padded if heads else 0)
        known = self._contents.matrices[key]
        pieces = tuple(
            PanelPiece(part.first, part.n_panels, self._places.get(bundle.number, 0) + part.offset, bundle.number)
            for bundle, part in self._parts[key]
        )
        panel = panel_for(format_of(self._tensors[weight.tensor].ggml_type))
        return StreamedMatrix(panel, known.n_panels, known.panel_bytes, pieces)
