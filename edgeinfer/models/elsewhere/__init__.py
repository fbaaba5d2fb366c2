"""Models in the folders of other programs: one file per program, each exporting `PROGRAM`, an `OtherProgram`.

In: nothing but the locations where those programs keep models. Out: `FoundModel` models, to be used in place. Reads
names, sizes and small metadata files only; opens no model and writes nothing. Unreadable entries are skipped.
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
    """A model: its shards in order. `source` identifies it uniquely, `name` is its program's name for it."""

    name: str
    source: str
    paths: tuple[Path, ...]
    nbytes: int
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class OtherProgram:
    """Another program that keeps models on this computer.

    `folders`: where it may keep them, whether they exist or not. `models`: the models in one folder; raises OSError.
    """

    name: str
    folders: Callable[[], Sequence[Path]]
    models: Callable[[Path], Iterator[FoundModel]]
