"""The models of other programs that the user took off the list: a short file, a source a line.

In: the store's folder, sources. Out: sources. Pulling such a model lists it again, by a manifest of its own.
"""

from __future__ import annotations

from pathlib import Path

from edgeinfer.models.manifest import write_paths
from edgeinfer.path_text import path_text

FILE_NAME = ".unlisted"


class Unlisted:
    """The list in one folder."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME

    def sources(self) -> frozenset[str]:
        """The sources; none where the file cannot be read."""
        try:
            return frozenset(path_text(self._path.read_bytes()).splitlines())
        except (OSError, ValueError):
            return frozenset()

    def add(self, source: str) -> None:
        """Take a model off the list. Raises OSError."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_paths(self._path, "".join(f"{each}\n" for each in sorted({*self.sources(), source})))
