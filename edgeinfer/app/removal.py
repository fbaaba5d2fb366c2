"""What edgeinfer deletes: a model with everything derived from it, and what killed processes left behind.

In: a model of the store; the folders where edgeinfer keeps its files. Out: what is removed and what stays, before and
after: a model's file only if edgeinfer owns it, its bundle files, firing counts of neurons, tables of draft sources,
and saved KV caches of chats with it; temporary files, folders and locks without an owner, but not the files from which
a pull or a pack resumes. Asks no questions.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from glob import escape
from pathlib import Path

from edgeinfer.app.sessions.snapshots import ENDING
from edgeinfer.errors import EdgeInferError
from edgeinfer.models.store import OWN, LocalModel, ModelStore
from edgeinfer.offload.bundle_file import (
    VARIANTS,
    bundle_path,
    bundles_folder,
    file_stem,
    firing_path,
    part_path,
    remove_bundles,
)
from edgeinfer.text_values import size_text


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
    from edgeinfer.engine.prefixes.folders import folder_of
    from edgeinfer.engine.speculation.files import DraftFolder
    from edgeinfer.models.store_files import default_root

    snapshots = default_root().parent / "snapshots"
    places = [firing_path(fingerprint), DraftFolder(fingerprint, "").path]
    places += snapshots.glob(f"*-{fingerprint[:32]}{ENDING}")
    places.append(folder_of(fingerprint))
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


MEMORY_FOLDER = Path("/dev/shm")


def remove_all_leftovers() -> None:
    """Clean up edgeinfer's folders once; a folder that cannot be read or written is no error."""
    from edgeinfer.engine.running import running
    from edgeinfer.file_lock import remove_stale_locks
    from edgeinfer.models.store_files import default_root
    from edgeinfer.offload.bundle_file import bundles_folder
    from edgeinfer.temporary import remove_leftovers

    for folder in _folders():
        remove_leftovers(folder)
    for folder in (default_root(), bundles_folder()):
        remove_stale_locks(folder)
    running()  # this removes the notes of killed processes


def _folders() -> Iterator[Path]:
    """Folders that may hold temporary files."""
    import platformdirs

    from edgeinfer.backends.memories import kv_folder
    from edgeinfer.engine.prefixes.folders import prefixes_folder
    from edgeinfer.models.store_files import default_root
    from edgeinfer.offload.bundle_file import bundles_folder
    from edgeinfer.settings import user_config_path

    models, cache = default_root(), Path(platformdirs.user_cache_dir("edgeinfer"))
    home, settings = models.parent, user_config_path().parent
    yield from (
        models,
        home,
        home / "profiles",
        home / "running",
        home / "snapshots",
        bundles_folder(),
        kv_folder(),
        settings,
        settings / "personas",
    )
    for parent in (home / "drafts", cache / "kernels", prefixes_folder()):
        yield from parent.glob("*/")
    yield from (cache / "openvino", Path(tempfile.gettempdir()), MEMORY_FOLDER)
