"""Models that Ollama has pulled, under Ollama's names: llama3.2:3b.

In: one of Ollama's folders. Out: its models, in place. Names are in the paths of manifests, files in the manifests;
`edgeinfer.models.sources.ollama` describes both. A manifest without a model, or whose model is missing, is skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from edgeinfer.errors import EdgeInferError
from edgeinfer.models.elsewhere import FoundModel, OtherProgram
from edgeinfer.models.elsewhere.walking import entries_of
from edgeinfer.models.sources.ollama import (
    MANIFESTS_CAP,
    NAME,
    PREFIX,
    blob_path,
    model_digest,
    ollama_folders,
    ollama_name,
)

LEVELS = 4  # registry, namespace, name, tag


def _models(folder: Path) -> Iterator[FoundModel]:
    for number, (parts, path) in enumerate(_manifests(folder / "manifests", ())):
        if number >= MANIFESTS_CAP:
            return
        name = ollama_name(*parts)
        if not NAME.fullmatch(name):
            continue
        try:
            digest = model_digest(path)
            blob = blob_path(folder, digest)
            nbytes = blob.stat().st_size if blob.is_file() else 0
        except (EdgeInferError, OSError):
            continue
        if nbytes:
            yield FoundModel(name, f"{PREFIX}{name}", (blob,), nbytes, digest)


def _manifests(folder: Path, parts: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Path]]:
    """The files at the depth of manifests, each with the parts of its name."""
    for entry in entries_of(folder):
        try:
            is_folder, is_file = entry.is_dir(), entry.is_file()
        except OSError:
            continue
        if is_folder and len(parts) < LEVELS - 1:
            yield from _manifests(Path(entry.path), (*parts, entry.name))
        elif is_file and len(parts) == LEVELS - 1:
            yield (*parts, entry.name), Path(entry.path)


PROGRAM = OtherProgram("Ollama", ollama_folders, _models)
