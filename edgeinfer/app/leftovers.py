"""Removes what killed edgeinfer processes left behind: temporary files, folders and locks without an owner.

In: nothing but where edgeinfer keeps its files. Out: those places, cleaned up. Files from which a pull or a pack
resumes stay, and so does everything of a process that still runs.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

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
        settings,
        settings / "personas",
    )
    for parent in (home / "drafts", cache / "kernels"):
        yield from parent.glob("*/")
    yield from (cache / "openvino", Path(tempfile.gettempdir()), MEMORY_FOLDER)
