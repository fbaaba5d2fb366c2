"""A local model file: listed by the store, left in place.

In: a path to a .gguf file (any shard of a split model). Out: a delivery in place. Copies and changes nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from edgeinfer.errors import ModelNotFound
from edgeinfer.models.decoder_folder import is_decoder_folder
from edgeinfer.models.delivery import Delivery, Pull, Received, SourceKind
from edgeinfer.models.download.header import file_header
from edgeinfer.models.file_names import model_name, shard_names
from edgeinfer.text_values import user_path

SCHEME = re.compile(r"[a-z][a-z0-9+.\-]+:(?![/\\]?$)", re.IGNORECASE)  # two letters at least: C:\ is a drive

REPOSITORY = re.compile(r"[\w.\-]+/[\w.\-]+(?::[\w.\-]+)?")


def shard_paths(path: Path) -> tuple[Path, ...]:
    """The files of the model at `path`, all of its shards. Raises ModelNotFound, naming what is missing."""
    if is_decoder_folder(path):
        raise ModelNotFound(f"{path} is a folder with an ONNX decoder, which is used where it lies: -m {path}")
    if path.is_dir():
        found = sorted(entry.name for entry in path.glob("*.gguf"))
        there = f"it holds {', '.join(found[:5])}" if found else "it holds no .gguf file and no ONNX decoder"
        raise ModelNotFound(f"{path} is a folder; give the path of a .gguf file; {there}")
    paths = tuple(path.with_name(name) for name in shard_names(path.name))
    missing = [str(part) for part in paths if not part.is_file()]
    if missing:
        raise ModelNotFound(f"there is no file {', '.join(missing[:3])}; give the path of a .gguf file that exists")
    return paths


def names_repository(text: str) -> bool:
    """Whether a text is USER/REPO[:QUANT] of a hub and not, or not the beginning of, a local path."""
    if not REPOSITORY.fullmatch(text) or text.startswith(".") or text.lower().endswith(".gguf"):
        return False
    return not (Path(text).exists() or Path(text).parent.is_dir())


@dataclass(frozen=True, slots=True)
class PathSource:
    """A file on this machine."""

    path: Path

    @property
    def text(self) -> str:
        """The absolute path."""
        return str(self.path)

    @property
    def key(self) -> str:
        """The absolute path, with the kind's prefix."""
        return f"path:{self.path}"

    def fetch(self, pull: Pull) -> Delivery:
        """Check that the files exist and begin like a model. Raises ModelNotFound, BadGGUF."""
        paths = shard_paths(self.path)
        file_header(paths[0])
        name = model_name(paths[0].name)
        pull.claim(name, self.text)
        files = tuple(Received(path, path.name, path.stat().st_size, None) for path in paths)
        return Delivery(name, self.text, files, in_place=True)


def _parse(text: str) -> PathSource:
    return PathSource(user_path(text.removeprefix("path:")).absolute())


def _matches(text: str) -> bool:
    if text.startswith("path:"):
        return True
    if names_repository(text):
        return False
    looks_like_one = text.lower().endswith(".gguf") or "/" in text or "\\" in text
    return not SCHEME.match(text) and (looks_like_one or Path(text).exists())


SOURCE = SourceKind("a path to a .gguf file", _matches, _parse)
