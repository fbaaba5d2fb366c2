"""Which of an answer's text was drafted, and by whom: runs of characters.

In: lengths of pieces with their drafter. Out: runs, neighbours of one kind joined. Knows no tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mark:
    """A run of text: `source` is the drafter that proposed it, None where nobody did."""

    n_characters: int
    source: str | None


def marks_of(pieces: Iterable[tuple[int, str | None]]) -> tuple[Mark, ...]:
    """Pieces of text, by length and drafter, as runs."""
    found: list[Mark] = []
    for n_characters, source in pieces:
        if not n_characters:
            continue
        if found and found[-1].source == source:
            found[-1] = Mark(found[-1].n_characters + n_characters, source)
        else:
            found.append(Mark(n_characters, source))
    return tuple(found)
