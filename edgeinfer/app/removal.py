"""Removes a model: its file if edgeinfer owns it, and everything derived from it.

In: a model of the store. Out: what is removed and what stays, before and after. Derived are bundle files, firing counts
of neurons, tables of draft sources, and saved KV caches of chats with it. Asks no questions.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from edgeinfer.app.bundled import bundles_of
from edgeinfer.app.snapshots import ENDING
from edgeinfer.errors import EdgeInferError
from edgeinfer.models.store import OWN, LocalModel, ModelStore
from edgeinfer.offload.bundle_file import firing_path, remove_bundles
from edgeinfer.text_values import size_text


@dataclass(frozen=True, slots=True)
class Removal:
    """What removing a model does: deletes `bundles` and `derived`, and the model's own files only if `deletes_file`.

    Of a link in the models folder only the link is removed, not the file it points to.
    """

    model: LocalModel
    deletes_file: bool
    bundles: tuple[Path, ...]
    derived: tuple[Path, ...]

    @property
    def question(self) -> str:
        """What is about to be deleted."""
        beside = " and its bundle file" if self.bundles else ""
        return f"{self.model.name} ({size_text(self.model.nbytes)}){beside}"


@dataclass(frozen=True, slots=True)
class Removed:
    """What removing a model did, and the bytes freed; `stays_at`: where its file remains."""

    model: LocalModel
    stays_at: Path | None
    bundle_bytes: int
    freed_bytes: int

    @property
    def text(self) -> str:
        """The result as one line."""
        beside = "; its bundle file is deleted" if self.bundle_bytes else ""
        if self.stays_at is None:
            return f"{self.model.name} removed, {size_text(self.freed_bytes)} freed{beside}"
        return f"{self.model.name} removed from the list; the file stays at {self.stays_at}{beside}"


def planned_removal(store: ModelStore, name: str) -> Removal:
    """What removing the model called `name` would do. Raises ModelNotFound."""
    model = store.listed_model(name)
    deletes_file = model.place == OWN and not model.path.is_symlink()
    fingerprint = _own_fingerprint(store, model)
    if fingerprint is None:
        return Removal(model, deletes_file, (), ())
    return Removal(model, deletes_file, tuple(bundles_of(model)), tuple(_derived(fingerprint)))


def remove_model(store: ModelStore, name: str) -> Removed:
    """Remove a model and everything derived from it. Raises ModelNotFound, or EdgeInferError if deleting fails."""
    planned = planned_removal(store, name)
    path = planned.model.path
    stays_at = path.resolve() if planned.model.place == OWN else path
    try:
        gone = store.remove(planned.model.name)
        bundle_bytes = sum(map(remove_bundles, planned.bundles))
    except OSError as error:
        raise EdgeInferError(f"{error.filename} cannot be deleted: {error.strerror or error}") from None
    derived_bytes = sum(map(_delete, planned.derived))
    own_bytes = gone.nbytes if planned.deletes_file else 0
    return Removed(
        gone, None if planned.deletes_file else stays_at, bundle_bytes, own_bytes + bundle_bytes + derived_bytes
    )


def _own_fingerprint(store: ModelStore, model: LocalModel) -> str | None:
    """The fingerprint of the model's derived files; None if another listed file is the same model."""
    found = _fingerprint(model)
    alike = (other for other in store.models() if other.nbytes == model.nbytes and other.name != model.name)
    return None if found is None or any(_fingerprint(other) == found for other in alike) else found


def _fingerprint(model: LocalModel) -> str | None:
    """None if the file is missing or cannot be read."""
    from edgeinfer.models.file_facts import fingerprint
    from edgeinfer.models.gguf import GGUFFile

    try:
        with GGUFFile.open(model.path) as file:
            return fingerprint(file)
    except EdgeInferError:
        return None


def _derived(fingerprint: str) -> list[Path]:
    """Files and folders derived from a model, other than its bundle files."""
    from edgeinfer.engine.speculation.files import DraftFolder
    from edgeinfer.models.store_files import default_root

    snapshots = default_root().parent / "snapshots"
    places = [firing_path(fingerprint), DraftFolder(fingerprint, "").path]
    places += snapshots.glob(f"*-{fingerprint[:32]}{ENDING}")
    return [path for path in places if path.exists()]


def _delete(path: Path) -> int:
    """Delete a file or a folder; return its size in bytes."""
    files = [each for each in path.rglob("*") if each.is_file()] if path.is_dir() else [path]
    nbytes = sum(each.stat().st_size for each in files)
    with suppress(OSError):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    return nbytes
