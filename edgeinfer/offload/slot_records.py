"""The record that threads share which fill slots of memory from a file; see `kernels.weights.filling`.

In: nothing. Out: dtypes and numbers. Loads no compiler.
"""

from __future__ import annotations

import numpy as np

FLYING = -1
"""The order of a slot that is being filled."""
NOBODY, BROKEN = -1, -2
"""Tags of slots that hold nothing, and of those whose read failed."""
GUESS = 1 << 40
"""Orders from here on are guesses."""

FILLING = np.dtype(
    [
        ("orders", "i8"),  # int64[n_slots]: 0 nothing to read, > 0 the lowest is read next, or FLYING
        ("tags", "i8"),  # int64[n_slots]: the number of what is to be read
        ("held", "i8"),  # int64[n_slots]: the number of what is there, or NOBODY, or BROKEN
        ("ranks", "i8"),  # int64[n_slots]: the lowest is filled anew first,
        ("turns", "i8"),  # int64[n_slots]: which of `n_turns` that take turns it is for; later ones rank lower,
        ("barred", "i8"),  # int64[n_slots]: of those barred as little as is asked for
        ("n_turns", "i8"),
        ("turn", "i8"),  # the present one
        ("step", "i8"),  # how much lower each turn ranks
        ("places", "i8"),  # int64[numbers]: where each begins in the file
        ("lengths", "i8"),  # int64[numbers]: its bytes, whole pages
        ("counts", "i8"),  # int64[numbers]: how often each was read
        ("list", "i8"),  # int64[n_slots]: slots that a call is about
        ("n_slots", "i8"),
        ("memory", "i8"),  # uint8[n_slots, stride]
        ("stride", "i8"),
        ("descriptor", "i8"),  # of the file
        ("most_guesses", "i8"),  # read at a time
        ("pread", "i8"),  # C functions
        ("read", "i8"),
        ("write", "i8"),
        ("work_out", "i8"),  # ends of pipes: what wakes readers comes out here
        ("work_in", "i8"),
        ("arrived_out", "i8"),  # and what wakes the one thread that waits for them
        ("arrived_in", "i8"),
        ("epoch", "i8"),  # ticks
        ("n_guesses", "i8"),  # being read
        ("n_asleep", "i8"),
        ("is_waiting", "i8"),
        ("stopping", "i8"),
        ("under_way", "i8"),  # reads under way * 2^BUSY_SHIFT + ticks since the epoch when the first of them began
        ("busy", "i8"),  # ticks in which any was
    ]
)
"""`kernels.weights.filling`."""

BUSY_SHIFT = 56
READ_COLUMNS = 5
"""Numbers of a read of `weights.page_reads`: first byte in the file, bytes, first and end of records, its result."""


def place_of(name: str) -> int:
    """Where a field of FILLING begins."""
    assert FILLING.fields is not None
    return FILLING.fields[name][1]
