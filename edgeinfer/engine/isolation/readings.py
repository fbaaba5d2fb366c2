"""What the process of an isolated evaluator has read of weights, as a plain value and back.

In: a `Reading`, or a value from the other process. Out: the other one; ValueError or TypeError for what is none. Knows
no processes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from edgeinfer.backends.stored import Reading
from edgeinfer.engine.isolation.messages import Plain


def plain_reading(reading: Reading) -> Plain:
    """Counts, seconds, and reads by their size."""
    sizes: list[Plain] = [[size, count] for size, count in reading.sizes.items()]
    found = reading.n_wanted, reading.n_found, reading.n_guessed, reading.n_proved
    cut = reading.n_activations, reading.n_kept
    return [reading.n_bytes, reading.waited_s, reading.n_passes, sizes, *found, reading.read_s, *cut]


def reading_of(value: Any) -> Reading:
    """What `plain_reading` made a value of. Raises ValueError or TypeError for what is none."""
    n_bytes, waited_s, n_passes, sizes, n_wanted, n_found, n_guessed, n_proved, read_s, *cut = value
    by_size = {int(size): int(count) for size, count in sizes}
    counts = int(n_wanted), int(n_found), int(n_guessed), int(n_proved)
    n_activations, n_kept = (int(count) for count in cut)
    found = Reading(int(n_bytes), float(waited_s), int(n_passes), by_size, *counts, read_s=float(read_s))
    return replace(found, n_activations=n_activations, n_kept=n_kept)
