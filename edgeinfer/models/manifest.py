"""The manifest of a stored model: a small JSON file beside it.

In and out: `Manifest` values and their files. Paths inside the store's folder are written relative to it, so that the
folder can be moved. A file that is not a manifest reads as None. Independent of where models come from.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from edgeinfer.temporary import temporary_path
from edgeinfer.text_values import path_bytes, path_text

FORMAT = 1
MANIFEST_CAP_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ModelFile:
    """One file of a model; `sha256` is None if it was never computed."""

    path: Path
    nbytes: int
    sha256: str | None


@dataclass(frozen=True, slots=True)
class Manifest:
    """What the store knows of a model."""

    name: str
    source: str  # in full, with version or quant
    key: str  # the key of its source
    asked: str  # the source as the user gave it
    files: tuple[ModelFile, ...]

    @property
    def intact(self) -> bool:
        """Whether every file exists with the recorded size."""
        return all(_size(file.path) == file.nbytes for file in self.files)

    def write(self, path: Path) -> None:
        """Write the manifest, atomically."""
        folder = path.parent
        files = [
            {
                "path": file.path.name if file.path.parent == folder else str(file.path),
                "nbytes": file.nbytes,
                "sha256": file.sha256,
            }
            for file in self.files
        ]
        record = {"format": FORMAT, "name": self.name, "source": self.source, "key": self.key, "asked": self.asked}
        write_paths(path, json.dumps({**record, "files": files}, indent=2, ensure_ascii=False) + "\n")


def manifest_file_name(name: str) -> str:
    """The file name of a model's manifest: the model's name, with characters invalid in file names replaced."""
    return f"{name.replace('/', '%2F').replace(':', '%3A')}.json"


def read_manifest(path: Path) -> Manifest | None:
    """The manifest in a file; None if it contains none."""
    try:
        if path.stat().st_size > MANIFEST_CAP_BYTES:
            return None
        record = json.loads(path_text(path.read_bytes()))
        files = tuple(
            ModelFile(path.parent / str(file["path"]), int(file["nbytes"]), file["sha256"] and str(file["sha256"]))
            for file in record["files"]
        )
        if record["format"] != FORMAT or not files or manifest_file_name(record["name"]) != path.name:
            return None
        return Manifest(record["name"], str(record["source"]), str(record["key"]), str(record["asked"]), files)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def write_text(path: Path, text: str) -> None:
    """Write a small file so that readers see either the old or the new content, never half of it.

    Raises ValueError for text that is not valid UTF-8.
    """
    _write(path, text.encode("utf-8"))


def write_paths(path: Path, text: str) -> None:
    """The same for text with paths, whose names may contain any bytes; `path_text` reads it."""
    _write(path, path_bytes(text))


def _write(path: Path, content: bytes) -> None:
    fresh = temporary_path(path)
    try:
        with fresh.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)
    finally:
        fresh.unlink(missing_ok=True)


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None
