"""The quantities of a profile's file: units people use, and what is possible at all.

In and out: nothing; constants that the reader and the writer of profiles share.
"""

from __future__ import annotations

from edgeinfer.scheduling.machine.toml_table import Quantity

VERSION = 1
"""Of the file's layout."""

GIGABYTES = Quantity("GB", 9, 1e6)
MEGABYTES = Quantity("MB", 6, 1e9, zero=True)
BYTES = Quantity("bytes", 0, 1e12, zero=True)
READ_RATE = Quantity("GB/s", 9, 1e5)
MULTIPLY_ADDS = Quantity("G multiply-adds/s", 9, 1e8)
MADDS = Quantity("G multiply-adds", 9, 1e12)
ELEMENT_RATE = Quantity("G elements/s", 9, 1e6)
MICROSECONDS = Quantity("µs", -6, 1e7, zero=True)
NANOSECONDS = Quantity("ns", -9, 1e9)
BYTES_PER_WEIGHT = Quantity("bytes a weight", 0, 16)
TOKENS = Quantity("tokens", 0, 1e7)
SHARE = Quantity("1", 0, 1, zero=True)
SPEED = Quantity("times the fastest core's speed", 0, 100)
