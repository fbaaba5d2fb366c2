"""Which models of the store have bundle files, and deleting a model with them.

In: a model of the store. Out: where its bundle files are, and their size. Opens the model's file only where the folder
of bundle files holds any; does not look into bundle files.
"""

from __future__ import annotations

from pathlib import Path

from edgeinfer.errors import EdgeInferError
from edgeinfer.models.bundle_places import VARIANTS, bundle_path, bundles_folder, part_path, remove_bundles
from edgeinfer.models.store import LocalModel, Store


def bundles_of(model: LocalModel) -> list[Path]:
    """The bundle files of a model, whole or half-written."""
    if not _any_bundles():
        return []
    from edgeinfer.engine.fingerprint import fingerprint
    from edgeinfer.models.gguf import GGUFFile

    try:
        with GGUFFile.open(model.path) as file:
            paths = [bundle_path(model.name, fingerprint(file), variant) for variant in VARIANTS]
    except EdgeInferError:
        return []
    return [path for path in paths if path.is_file() or part_path(path).is_file()]


def bundle_bytes(model: LocalModel) -> int:
    """Bytes of a model's bundle files; 0 where there is no whole one."""
    return sum(path.stat().st_size for path in bundles_of(model) if path.is_file())


def remove_model(store: Store, name: str) -> tuple[LocalModel, int]:
    """Delete a model with its bundle files; gives what it was, and the bytes of those. Raises ModelNotFound."""
    try:
        bundles = bundles_of(store.find(name))
    except EdgeInferError:  # a model whose file is gone already can be taken off the list
        bundles = []
    gone = store.remove(name)
    return gone, sum(map(remove_bundles, bundles))


def _any_bundles() -> bool:
    try:
        return any(bundles_folder().iterdir())
    except OSError:
        return False
