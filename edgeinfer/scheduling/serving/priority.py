"""In which order answers that wait begin: those that somebody is looking at first, but none waits for ever.

In: priorities and how long each has waited. Out: ranks, by which whoever keeps a queue sorts. Knows no memory.
"""

from __future__ import annotations

from typing import Literal, get_args

from edgeinfer.errors import BadSetting

Priority = Literal["interactive", "background"]

AGED_S = 20.0
"""A background answer that has waited so long counts as interactive."""


def checked(priority: Priority) -> Priority:
    """A priority. Raises BadSetting for one that there is not."""
    if priority not in get_args(Priority):
        raise BadSetting(f"priority cannot be {priority!r}: it must be {' or '.join(get_args(Priority))}")
    return priority


def rank(priority: Priority, waited_s: float) -> int:
    """Lower ranks go first; of equal ones the one that came first."""
    return 0 if priority == "interactive" or waited_s >= AGED_S else 1
