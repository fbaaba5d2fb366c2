"""How memory is divided between single neurons and the pieces of a model that every pass needs.

In: the pieces, the sizes of neurons and how they fire, the memory for weights, the disk's rates. Out: a
`WeightPlacement`, or why there is none. Knows nothing of files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from edgeinfer.errors import DoesNotFit
from edgeinfer.scheduling.cost.memory import enough
from edgeinfer.scheduling.machine.profile import Disk
from edgeinfer.scheduling.offload.neurons.firing import Firing, FiringNeurons
from edgeinfer.scheduling.offload.reads import SMALL_READERS, ReadTimes, read_times
from edgeinfer.scheduling.offload.weight_placement import WeightPiece, WeightPlacement, place_weights

LEAST_NEURONS = 0.02
"""Smallest share of all neurons to make room for."""
SPLITS = 24
"""How many ways to divide memory between single neurons and the rest are compared."""
SPARING = 1.2
"""Factor on the predicted time that fewer bytes may cost: others use the disk too, and predictions are no better."""
USUAL = Firing()


@dataclass(frozen=True, slots=True)
class NeuronLoads:
    """Single neurons.

    nbytes       of all of them
    least_bytes  minimum room for them
    run_bytes    of the largest piece that is read at first; one must fit into the memory for reading
    read_bytes   memory that each later read takes
    count        neurons of all layers
    n_layers     layers of neurons
    firing       how they fire
    """

    nbytes: int
    least_bytes: int
    run_bytes: int
    read_bytes: int
    count: int
    n_layers: int
    firing: Firing = USUAL

    @property
    def reading_bytes(self) -> int:
        """Memory that neurons are read into."""
        return max(self.run_bytes, SMALL_READERS * self.read_bytes)

    @property
    def least_room(self) -> int:
        """Smallest memory at which reading single neurons is worthwhile, that for reading them included."""
        return max(self.least_bytes, int(self.nbytes * LEAST_NEURONS)) + self.reading_bytes

    def place(self, loads: Sequence[WeightPiece], budget_bytes: int, disk: Disk | None, what: str) -> WeightPlacement:
        """`place_neurons` with these."""
        return place_neurons(loads, self, budget_bytes, disk, what)

    def in_memory(self, n_bytes: int, times: ReadTimes) -> FiringNeurons:
        """All of them, with this much memory, including that for reading, to hold some."""
        size = self.nbytes / self.count
        held = max(0.0, (n_bytes - self.reading_bytes) / size)
        return FiringNeurons(self.count, size, self.n_layers, min(held, self.count), self.firing, times)


def place_neurons(
    loads: Sequence[WeightPiece],
    neurons: NeuronLoads,
    budget_bytes: int,
    disk: Disk | None,
    what: str,
) -> WeightPlacement:
    """What stays of a model with single neurons beside the pieces that every pass needs, and how the rest is read.

    Divides memory between the two so that a token takes little time and reads few bytes. Raises as `place_weights`.
    """
    least = neurons.least_room
    dense = sum(load.nbytes for load in loads)
    if budget_bytes <= least:
        raise DoesNotFit(
            f"{enough(max(0, budget_bytes))} of memory for the weights of {what} is too little: "
            f"{enough(least)} are for single neurons and for reading them; "
            f"{enough(least + dense // 2)} at least would work"
        )
    times, passing = read_times(disk, SMALL_READERS), 2 * max(load.nbytes for load in loads)
    staying = {number for number, load in enumerate(loads) if load.uses > 1}
    found = list[tuple[float, WeightPlacement]]()
    most = min(neurons.nbytes + neurons.reading_bytes, budget_bytes - min(dense, passing))
    for step in range(SPLITS + 1):
        asked = least + max(0, most - least) * step // SPLITS
        try:
            rest = place_weights(loads, min(dense, budget_bytes - asked), disk, what)
        except DoesNotFit:
            if not found:
                raise
            break
        if found and not staying <= rest.pinned:
            break
        split = _with_neurons(loads, rest, neurons, budget_bytes, times)
        read = neurons.in_memory(split.record_bytes, times).reads()
        seconds = rest.streamed_bytes * times.byte_s + read.seconds
        found.append((seconds, split))
    longest = SPARING * min(seconds for seconds, _ in found)
    return min((split for seconds, split in found if seconds <= longest), key=lambda split: split.streamed_bytes)


def _with_neurons(
    loads: Sequence[WeightPiece],
    dense: WeightPlacement,
    neurons: NeuronLoads,
    budget: int,
    times: ReadTimes,
) -> WeightPlacement:
    """What stays of the pieces that every pass needs, with neurons in the remaining memory."""
    held = dense.window_bytes + sum(loads[number].nbytes for number in dense.pinned)
    n_bytes = min(neurons.nbytes + neurons.reading_bytes, budget - held)
    read = neurons.in_memory(n_bytes, times).reads().n_bytes
    return replace(dense, streamed_bytes=dense.streamed_bytes + read, record_bytes=n_bytes)
