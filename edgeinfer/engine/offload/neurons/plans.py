"""Whether layers are read by neurons or whole, and what the engine's plans know of neurons otherwise.

In: sizes, counts of earlier runs, the ways to read a model that fit in memory. Out: `RecordPlans`, the only thing that
the engine knows of this folder, by the constant PLANS.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from edgeinfer.backends.offload import RecordSizes
from edgeinfer.engine.offload.neurons.firing import firing_of, keep_firing
from edgeinfer.engine.offload.record_plans import Calibrated, RecordPlans
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.file_facts import approximate
from edgeinfer.models.load import Model
from edgeinfer.models.variants import threshold_of
from edgeinfer.scheduling.machine.profile import Disk
from edgeinfer.scheduling.offload.neurons.firing import FiringNeurons
from edgeinfer.scheduling.offload.neurons.placement import USUAL, NeuronLoads
from edgeinfer.scheduling.offload.streaming import StreamedModel
from edgeinfer.steps import Progress

WORTH = 0.9
"""Fraction of the time of reading whole layers below which neurons are read singly: nothing is computed meanwhile."""
TRIED = 1.5
"""The same before any run has counted how neurons fire: only reading by neurons counts it."""


def neuron_loads(sizes: RecordSizes, spec: ModelSpec, fingerprint: str | None = None) -> NeuronLoads:
    """The neurons of all sparse layers. `fingerprint`: of the file, None for typical firing."""
    firing = USUAL if fingerprint is None else firing_of(approximate(fingerprint, threshold_of(spec)))
    counts = sizes.nbytes, sizes.least_bytes, sizes.run_bytes, sizes.read_bytes, sizes.count, sizes.n_layers
    return NeuronLoads(*counts, firing)


def faster(ways: Sequence[StreamedModel], disk: Disk | None) -> StreamedModel:
    """The faster way to read a model, by neurons or whole, if both fit in memory; with the reason."""
    if len(ways) == 1:
        return replace(ways[0], why=f"{_layout(ways[0])}: the other way takes more memory")
    neurons = ways[0].streamed.records
    assert isinstance(neurons, FiringNeurons)
    singly, whole = (kept.streamed.seconds(disk) for kept in ways)
    found, other = ways if singly <= (WORTH if neurons.firing.n_tokens else TRIED) * whole else ways[::-1]
    seconds = {id(kept): 1e3 * kept.streamed.seconds(disk) for kept in ways}
    why = (
        f"{_layout(found)}, {seconds[id(found)]:.3g} ms of reading a token, {_layout(other)} it would be "
        f"{seconds[id(other)]:.3g} ms; {neurons.firing.says}"
    )
    return replace(found, why=why)


def _layout(kept: StreamedModel) -> str:
    return "by single neurons" if kept.by_records else "whole"


def _calibrate(model: Model, name: str, text: str, progress: Progress) -> Calibrated:
    from edgeinfer.engine.offload.neurons.order import calibrated

    return calibrated(model, name, text, progress)


PLANS = RecordPlans(neuron_loads, faster, keep_firing, _calibrate)
