"""Sizes for people, in decimal units: 1 MB is 10^6 bytes, as disks and downloads are labelled.

In: a number of bytes. Out: text. The one way in which all messages and commands write sizes.
"""

from __future__ import annotations


def size_text(nbytes: float) -> str:
    """A byte count for people: "450 bytes", "33.7 kB", "98.4 MB", "4.68 GB", "25.3 GB"."""
    if nbytes < 1000:
        return f"{nbytes:.0f} bytes"
    if nbytes < 999.95e3:
        return f"{nbytes / 1e3:.1f} kB"
    if nbytes < 999.95e6:
        return f"{nbytes / 1e6:.1f} MB"
    return f"{nbytes / 1e9:.2f} GB" if nbytes < 9.995e9 else f"{nbytes / 1e9:.1f} GB"
