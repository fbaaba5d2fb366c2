"""Models in the folders of other programs: one file per program, each exporting `PROGRAM`, an `OtherProgram`.

In: nothing but where those programs keep their models. Out: `FoundModel` models, to be used where they are. Reads
names, sizes and small descriptions only, opens no model and writes nothing; what cannot be read is passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from edgeinfer.registry import Registry

PROGRAMS: Registry[OtherProgram] = Registry(__name__, "PROGRAM", "program", skip=("walking",))


def models_elsewhere() -> Iterator[tuple[str, FoundModel]]:
    """Every model of another program, with the program's name."""
    for program in PROGRAMS.entries().values():
        with suppress(OSError, RuntimeError):  # a user without a home folder
            for folder in program.folders():
                with suppress(OSError):
                    for found in program.models(folder.absolute()):
                        yield program.name, found


@dataclass(frozen=True, slots=True)
class FoundModel:
    """A model: its shards in order. `source` tells it from all others, `name` is what its program calls it."""

    name: str
    source: str
    paths: tuple[Path, ...]
    nbytes: int
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class OtherProgram:
    """Another program that keeps models on this computer.

    `folders`: where it may keep them, whether they are there or not. `models`: those in one folder; raises OSError.
    """

    name: str
    folders: Callable[[], Sequence[Path]]
    models: Callable[[Path], Iterator[FoundModel]]
