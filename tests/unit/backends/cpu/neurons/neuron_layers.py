"""Layers of neurons of a model in tests, and the bundles of their records."""

from __future__ import annotations

from edgeinfer.backends.cpu.bundles.contents import Contents
from edgeinfer.backends.cpu.neurons.layers import SparseLayer, sparse_layers
from edgeinfer.models.load import Model
from edgeinfer.offload.bundle import Bundle


def layers_of(model: Model) -> list[SparseLayer]:
    """The layers of a model that are stored by neurons."""
    return sparse_layers(list(model.spec.ops()), model.file.tensors)


def runs(contents: Contents, layer: int) -> list[Bundle]:
    """The bundles of a layer's neurons, in order."""
    return [each for each in contents.bundles if each.run is not None and each.run.layer == layer and each.run.count]
