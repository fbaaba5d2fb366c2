"""The command line of this process, as figures are signed with.

In: arguments. Out: a line that a shell understands, without the folders of this machine and without options that only
say where results go. Runs nothing.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

OMITTED = {"--json": False, "--chart": True}
"""Options left out, and whether a value follows."""


def written_command(arguments: list[str] | None = None) -> str:
    """The command line; `arguments`: those of this process, unless given."""
    kept: list[str] = []
    is_value = False
    for argument in sys.argv[1:] if arguments is None else arguments:
        name, equals, _ = argument.partition("=")
        if is_value or name in OMITTED:
            is_value = not is_value and not equals and OMITTED[name]
        else:
            kept.append(Path(argument).name if Path(argument).is_absolute() else argument)
    return shlex.join(("edgeinfer", *kept)).replace(str(Path.home()), "~")
