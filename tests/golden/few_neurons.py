"""A device that streams a model with little room for its neurons."""

from __future__ import annotations

from edgeinfer.backends.cpu.bundles.contents import Contents
from edgeinfer.backends.cpu.neurons.order import runs_of
from edgeinfer.backends.cpu.neurons.storage import NeuronLayers
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.offload.neurons.reads import least_bytes
from edgeinfer.offload.neurons.window import reading_bytes
from edgeinfer.offload.weights import OffloadedWeights
from tests.golden.streamed_devices import GAP_BYTES, Streamer

READERS = 2


class FewNeurons(Streamer):
    """Room for a share of the neurons, and for nothing else that need not stay."""

    def _place(self, spec: ModelSpec, held_in: Contents, identity: str) -> OffloadedWeights:
        assert isinstance(held_in.records, NeuronLayers)
        layers = runs_of(held_in.records.layers, held_in.bundles)
        runs = [bundle for layer in layers for bundle in layer.bundles]
        n_bytes = max(least_bytes(layers), int(self.share * sum(bundle.nbytes for bundle in runs)))
        n_bytes += reading_bytes(layers, READERS)
        pinned = frozenset(bundle.number for bundle in held_in.bundles if bundle.stays)
        held = sum(held_in.bundles[number].padded_bytes for number in pinned)
        window = 3 * max(bundle.padded_bytes for bundle in held_in.bundles if bundle.is_dense)
        sizes = held, window, READERS, 0, n_bytes
        return OffloadedWeights(self.path, identity, pinned, *sizes, record_readers=READERS, gap_bytes=GAP_BYTES)
