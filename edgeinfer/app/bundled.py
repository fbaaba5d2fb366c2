"""Which models of the store have bundle files.

In: a model of the store. Out: where its bundle files are, and their size. Opens the model's file only if the folder of
bundle files is not empty; does not read bundle files.
"""

from __future__ import annotations

from glob import escape
from pathlib import Path

from edgeinfer.errors import EdgeInferError
from edgeinfer.models.store import LocalModel
from edgeinfer.offload.bundle_file import VARIANTS, bundle_path, bundles_folder, file_stem, part_path


def bundles_of(model: LocalModel) -> list[Path]:
    """The bundle files of a model, complete or not."""
    if not _any_bundles():
        return []
    from edgeinfer.models.file_facts import fingerprint
    from edgeinfer.models.gguf import GGUFFile

    try:
        with GGUFFile.open(model.path) as file:
            paths = [bundle_path(model.name, fingerprint(file), variant) for variant in VARIANTS]
    except EdgeInferError:
        return []
    return [path for path in paths if path.is_file() or part_path(path).is_file()]


def bundle_bytes(model: LocalModel) -> int:
    """Bytes of a model's bundle files; 0 if none is complete.

    For lists: a model of another program, of which there may be many, is opened only if a bundle file is named after
    it.
    """
    if model.is_elsewhere and not any(bundles_folder().glob(f"{escape(file_stem(model.name))}-*")):
        return 0
    return sum(path.stat().st_size for path in bundles_of(model) if path.is_file())


def _any_bundles() -> bool:
    try:
        return any(bundles_folder().iterdir())
    except OSError:
        return False
