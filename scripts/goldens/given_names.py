"""Checks the names that scripts of goldens are given."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence


def check_names(given: Sequence[str], known: Sequence[str]) -> None:
    """End the script with an error that names the first unknown one, those that are like it, and what to do."""
    for name in given:
        if name not in known:
            close = ", ".join(difflib.get_close_matches(name, known)) or "none is like it"
            sys.exit(f"error: there is no case {name!r} ({close}); docs/ADDING.md says where a new one goes")
