"""Which models of the store have bundle files.

In: a model of the store. Out: where its bundle file is, and its size. Opens the model's file only where the folder of
bundle files holds any; does not look into bundle files.
"""

from __future__ import annotations

from pathlib import Path

from edgeinfer.errors import EdgeInferError
from edgeinfer.models.bundle_places import bundle_path, bundles_folder, part_path, whole_path
from edgeinfer.models.store import LocalModel


def bundles_of(model: LocalModel) -> Path | None:
    """The bundle file of a model, whole or half-written; None where there is none."""
    if not _any_bundles():
        return None
    from edgeinfer.engine.fingerprint import fingerprint
    from edgeinfer.models.gguf import GGUFFile

    try:
        with GGUFFile.open(model.path) as file:
            path = bundle_path(model.name, fingerprint(file))
    except EdgeInferError:
        return None
    there = (path, part_path(path), whole_path(path), part_path(whole_path(path)))
    return path if any(each.is_file() for each in there) else None


def bundle_bytes(model: LocalModel) -> int:
    """Bytes of a model's bundle files; 0 where there is no finished one."""
    path = bundles_of(model)
    found = () if path is None else (path, whole_path(path))
    return sum(each.stat().st_size for each in found if each.is_file())


def _any_bundles() -> bool:
    try:
        return any(bundles_folder().iterdir())
    except OSError:
        return False
