"""Models in the folders of other programs: one file per program, each exporting `PROGRAM`, an `OtherProgram`.

In: nothing but where those programs keep their models. Out: `FoundModel` models, to be used where they are. Reads
names, sizes and small descriptions only, opens no model and writes nothing; what cannot be read is passed over.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from edgeinfer.models.elsewhere.program import FoundModel, OtherProgram
from edgeinfer.registry import Registry

PROGRAMS: Registry[OtherProgram] = Registry(__name__, "PROGRAM", "program", skip=("program", "walking"))


def models_elsewhere() -> Iterator[tuple[str, FoundModel]]:
    """Every model of another program, with the program's name."""
    for program in PROGRAMS.entries().values():
        with suppress(OSError, RuntimeError):  # a user without a home folder
            for folder in program.folders():
                with suppress(OSError):
                    for found in program.models(folder.absolute()):
                        yield program.name, found
