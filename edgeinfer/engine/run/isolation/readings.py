"""What the process of an isolated evaluator has read of weights, as a plain value and back.

In: a `WeightReads`, or a value from the other process. Out: the other one; ValueError or TypeError for what is none.
Knows no processes.
"""

from __future__ import annotations

from typing import Any

from edgeinfer.engine.run.isolation.messages import Plain
from edgeinfer.offload.weights import WeightReads

COUNTS = (
    "n_neurons_read",
    "neuron_dense_bytes",
    "neuron_token_bytes",
    "neuron_pass_bytes",
    "neuron_read_bytes",
    "n_activations",
    "n_kept",
)
"""What is counted of single neurons, and of activations below a threshold."""


def plain_reading(reading: WeightReads) -> Plain:
    """Counts, seconds, and reads by their size."""
    sizes: list[Plain] = [[size, count] for size, count in reading.sizes.items()]
    found = reading.n_wanted, reading.n_found, reading.n_guessed, reading.n_proved
    more: list[Plain] = [getattr(reading, name) for name in COUNTS]
    return [reading.n_bytes, reading.waited_s, reading.n_passes, sizes, *found, reading.read_s, *more]


def reading_of(value: Any) -> WeightReads:
    """What `plain_reading` made a value of. Raises ValueError or TypeError for what is none."""
    n_bytes, waited_s, n_passes, sizes, n_wanted, n_found, n_guessed, n_proved, read_s, *more = value
    by_size = {int(size): int(count) for size, count in sizes}
    counts = int(n_wanted), int(n_found), int(n_guessed), int(n_proved)
    others = {name: int(count) for name, count in zip(COUNTS, more, strict=True)}
    return WeightReads(int(n_bytes), float(waited_s), int(n_passes), by_size, *counts, read_s=float(read_s), **others)
