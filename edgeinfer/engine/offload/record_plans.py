"""Plans for layers that are stored as records: the seam for a folder that makes some.

In: nothing. Out: the `RecordPlans` of the folder; None without it, and all layers are then read whole. What a record is
and which ones a pass uses is known to the folder alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edgeinfer import registry
from edgeinfer.backends.offload import RecordSizes
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.step import Int32s
from edgeinfer.models.load import Model
from edgeinfer.offload.weights import RecordUse, Streaming
from edgeinfer.scheduling.machine.profile import Disk
from edgeinfer.scheduling.offload.streaming import StreamedModel
from edgeinfer.scheduling.offload.weight_placement import RecordLoads
from edgeinfer.steps import Progress

FOLDER, ENTRY = "edgeinfer.engine.offload.neurons", "plans"
"""The folder, and its module with a constant PLANS."""


@dataclass(frozen=True, slots=True)
class Calibrated:
    """Orders, the tokens that they were found from, and the share of records that each of them used.

    reads, reads_by_number: runs of neighbouring records that each held-out token used (the last ones of the text), with
    records in the new order and by number; a layer whose new order has more runs keeps its order.
    """

    orders: tuple[Int32s, ...]
    n_tokens: int
    firing_share: float
    reads: float
    reads_by_number: float


@dataclass(frozen=True, slots=True)
class RecordPlans:
    """What the folder provides.

    loads      records of these sizes, used as in earlier runs of a file with this fingerprint (None: typically)
    choose     the faster one of the ways that fit in memory, by records and whole, and why
    keep       what a run counted, for later plans of the model with this fingerprint
    calibrate  a better order of records, found by running a model, called by this name, over a text
    """

    loads: Callable[[RecordSizes, ModelSpec, str | None], RecordLoads]
    choose: Callable[[Sequence[StreamedModel], Disk | None], StreamedModel]
    keep: Callable[[str, RecordUse], None]
    calibrate: Callable[[Model, str, str, Progress], Calibrated]


def record_plans() -> RecordPlans | None:
    """What the folder provides; None without it."""
    found: RecordPlans | None = registry.optional(FOLDER, ENTRY, "PLANS")
    return found


def keep_use(fingerprint: str, lane: Streaming) -> None:
    """Store what a lane counted, for later plans, if it reads records."""
    plans, use = record_plans(), lane.record_use
    if plans is not None and use is not None:
        plans.keep(fingerprint, use)
