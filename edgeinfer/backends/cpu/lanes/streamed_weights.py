"""The weights of a streamed model: its open bundle file, and matrices of which only some bundles stay in memory.

In: the place of a model's bundles, their contents, which bundles stay, a window for the others. Out: bundles, read past
the page cache if possible; pieces of matrices with the address that they have, or will have once they are read. Between
two steps a bundle may become pinned or streamed: `places`. Knows no lanes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.cpu.bundles.contents import Contents
from edgeinfer.backends.cpu.bundles.file import BundleFile
from edgeinfer.backends.cpu.layout.panels import Panel, panel_for
from edgeinfer.backends.cpu.memory.packing import HeadLayout, PanelPiece
from edgeinfer.backends.cpu.record_layers import PlacedRecords
from edgeinfer.graph.operands import Weight
from edgeinfer.models.gguf import TensorInfo
from edgeinfer.models.quants import format_of
from edgeinfer.offload.bundle import Bundle, Key, PanelRange
from edgeinfer.offload.bundle_file import DiskSource
from edgeinfer.offload.weights import OffloadedWeights


class Bundles:
    """An open bundle file that is read past the page cache: the `window.Source` of a lane."""

    def __init__(self, stored: OffloadedWeights, contents: Contents) -> None:
        """Raises BadBundle if the file cannot be used."""
        self.file = BundleFile.open(stored.path, contents, stored.fingerprint)
        try:
            self.source = self.file.source(direct=True)
        except BaseException:
            self.file.close()
            raise

    def read(self, bundle: Bundle, into: memoryview) -> None:
        """Fill `into` with a bundle. Raises DeviceFailed, BadBundle."""
        self.file.read(bundle.number, into, self.source)

    def check(self, bundle: Bundle, data: NDArray[np.uint8]) -> None:
        """Raise BadBundle unless `data` is what was written; checks each bundle once."""
        self.file.check(bundle.number, data)

    def offset(self, bundle: Bundle) -> int:
        """Where a bundle begins in the file."""
        return self.file.offset(bundle.number)

    @property
    def descriptor(self) -> int | None:
        """The file descriptor, if reads go past the page cache."""
        is_direct = isinstance(self.source, DiskSource) and self.source.is_direct
        return self.source.descriptor if isinstance(self.source, DiskSource) and is_direct else None

    def close(self) -> None:
        """Close the file. Safe to call twice."""
        self.source.close()
        self.file.close()


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
        shared = {
            bundle.run.layer: places[bundle.number]
            for bundle in contents.bundles
            if bundle.run is not None and not bundle.run.count
        }
        self.records = None if contents.records is None else PlacedRecords(contents.records, shared)
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
