"""Numbers of things in words: "1 pass", "2 passes".

In: how many, and of what. Out: text. Knows English only.
"""

from __future__ import annotations


def counted(number: int, one: str, several: str | None = None) -> str:
    """So many of something; `several` where that is not `one` with an s."""
    return f"{number} {one if number == 1 else several or one + 's'}"
