"""From the engine's numbers of an answer to what is shown of it.

In: marks. Out: runs of drafted text. Knows no thread and no widget.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgeinfer.app.tui.engine import Marked, Runs


def runs_of(marks: Sequence[Marked], n_before: int) -> Runs:
    """Who drafted what of an answer, of which so many characters were there before."""
    before: Runs = ((n_before, None),) if n_before else ()
    return (*before, *((mark.n_characters, mark.source) for mark in marks))
