"""What a file in `models/elsewhere` exports: how the models of one program are found. Records only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path


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
