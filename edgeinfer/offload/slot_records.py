"""The record shared by the threads that fill memory slots from a file; see `kernels.weights.filling`.

In: nothing. Out: dtypes and numbers. Loads no compiler.
"""

from __future__ import annotations

import numpy as np

FLYING = -1
"""The order of a slot that is being filled."""
NOBODY, BROKEN = -1, -2
"""Values of `held`: the slot is empty, or its read failed."""
GUESS = 1 << 40
"""Orders from this one on are guesses."""

FILLING = np.dtype(
    [
        ("orders", "i8"),  # int64[n_slots]: 0 nothing to read, > 0 the lowest is read next, or FLYING
        ("tags", "i8"),  # int64[n_slots]: the number to read into the slot
        ("held", "i8"),  # int64[n_slots]: the number that the slot holds, NOBODY or BROKEN
        ("ranks", "i8"),  # int64[n_slots]: the slot with the lowest rank is refilled first
        ("turns", "i8"),  # int64[n_slots]: the turn, of `n_turns`, that the slot is for; later turns lower the rank
        ("barred", "i8"),  # int64[n_slots]: protection; only slots at or below the caller's level are refilled
        ("n_turns", "i8"),
        ("turn", "i8"),  # the present turn
        ("step", "i8"),  # how much each turn lowers the rank
        ("places", "i8"),  # int64[numbers]: where each begins in the file
        ("lengths", "i8"),  # int64[numbers]: its bytes, whole pages
        ("counts", "i8"),  # int64[numbers]: how often each was read
        ("list", "i8"),  # int64[n_slots]: the slots that a call is about
        ("n_slots", "i8"),
        ("memory", "i8"),  # uint8[n_slots, stride]
        ("stride", "i8"),
        ("descriptor", "i8"),  # of the file
        ("most_guesses", "i8"),  # most guesses read at a time
        ("pread", "i8"),  # C functions
        ("read", "i8"),
        ("write", "i8"),
        ("work_out", "i8"),  # ends of the pipe that wakes readers
        ("work_in", "i8"),
        ("arrived_out", "i8"),  # ends of the pipe that wakes the one thread that waits for them
        ("arrived_in", "i8"),
        ("epoch", "i8"),  # start time in ticks
        ("n_guesses", "i8"),  # guesses being read
        ("n_asleep", "i8"),
        ("is_waiting", "i8"),
        ("stopping", "i8"),
        ("under_way", "i8"),  # reads under way * 2^BUSY_SHIFT + ticks since the epoch when the first of them began
        ("busy", "i8"),  # ticks during which any read was under way
    ]
)
"""Argument record of `kernels.weights.filling`."""

BUSY_SHIFT = 56
READ_COLUMNS = 5
"""Columns of a read of `weights.page_reads`: first byte in the file, bytes, first and end of records, its result."""


def place_of(name: str) -> int:
    """Byte offset of a field of FILLING."""
    assert FILLING.fields is not None
    return FILLING.fields[name][1]
