"""Counts in words: "1 pass", "2 passes".

In: a number and a noun. Out: text. English only.
"""

from __future__ import annotations


def counted(number: int, one: str, several: str | None = None) -> str:
    """Format a count; `several` is the plural if it is not `one` plus s."""
    return f"{number} {one if number == 1 else several or one + 's'}"
