"""What the process of an isolated evaluator has read of weights, as a plain value and back.

In: a `Reading`, or a value from the other process. Out: the other one; ValueError or TypeError for what is none. Knows
no processes.
"""

from __future__ import annotations

from typing import Any

from edgeinfer.backends.stored import Reading
from edgeinfer.engine.isolation.messages import Plain

NUMBERS = ("n_bytes", "n_passes", "n_wanted", "n_found", "n_guessed", "n_proved")
SECONDS = ("waited_s", "read_s")


def plain_reading(reading: Reading) -> Plain:
    """Counts, seconds, and reads by their size."""
    numbers: list[Plain] = [getattr(reading, name) for name in (*NUMBERS, *SECONDS)]
    return [numbers, [[size, count] for size, count in reading.sizes.items()]]


def reading_of(value: Any) -> Reading:
    """What `plain_reading` made a value of. Raises ValueError or TypeError for what is none."""
    numbers, sizes = value
    found = dict(zip((*NUMBERS, *SECONDS), numbers, strict=True))
    counts = {name: int(found[name]) for name in NUMBERS}
    seconds = {name: float(found[name]) for name in SECONDS}
    return Reading(sizes={int(size): int(count) for size, count in sizes}, **counts, **seconds)
