"""Checks that the disk has room for the bundle file of a model that does not fit in memory, before it is written.

In: the folder of bundle files and the size of a new one. Out: nothing, or an error with the numbers and what would
work. Does not know the contents of a bundle file; the writer checks again.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from edgeinfer.errors import DoesNotFit, PackFailed
from edgeinfer.models.store import default_root
from edgeinfer.offload.bundle_file import bundles_folder, part_path
from edgeinfer.text_values import size_text

REMEDY = "make room there, or set EDGEINFER_HOME to a folder on a larger disk"


def require_room_for_bundles(name: str, path: Path, bundle_bytes: int) -> None:
    """Raise PackFailed if a bundle file of this size, which a model needs, has no room at `path`.

    What an earlier pack left there is continued, or its space is reused.
    """
    part = part_path(path)
    wanted_bytes = bundle_bytes - (part.stat().st_size if part.is_file() else 0)
    free_bytes = _free(path.parent)
    if free_bytes is not None and wanted_bytes > free_bytes:
        raise PackFailed(
            f"{name} does not fit into the memory it may have, and the bundle file that the rest would be read from "
            f"needs {size_text(wanted_bytes)} in {path.parent}, where {size_text(free_bytes)} are free; {REMEDY}"
        )


def bundle_text(path: Path, bundle_bytes: int) -> str:
    """Where a model's bundle file is or will be, and whether it has room there."""
    if path.is_file():
        return f"{path} is there"
    free_bytes = _free(path.parent)
    room = "" if free_bytes is None else f", where {size_text(free_bytes)} are free"
    if free_bytes is not None and bundle_bytes > free_bytes:
        return f"has no room: it needs {size_text(bundle_bytes)} in {path.parent}{room}; {REMEDY}"
    return f"{size_text(bundle_bytes)}, which the first run writes in {path.parent}{room}"


def require_room_after_download(name: str, model_bytes: int, bundle_bytes: int) -> None:
    """Raise DoesNotFit if a model to be downloaded and the bundle file it needs do not both fit."""
    folder, models = bundles_folder(), default_root()
    both = _disk(folder) == _disk(models)
    wanted_bytes, free_bytes = bundle_bytes + (model_bytes if both else 0), _free(folder)
    if free_bytes is not None and wanted_bytes > free_bytes:
        what = f"it with its bundle file of {size_text(bundle_bytes)}" if both else "its bundle file"
        raise DoesNotFit(
            f"{name} does not fit in memory as a whole, and {what} needs {size_text(wanted_bytes)} in {folder}, where "
            f"{size_text(free_bytes)} are free; {REMEDY}, or take a smaller quant, which may need no bundle file"
        )


def _free(folder: Path) -> int | None:
    """Free bytes where a folder is or will be; None if the system does not report it."""
    try:
        return shutil.disk_usage(_existing(folder)).free
    except OSError:
        return None


def _disk(folder: Path) -> int | None:
    try:
        return os.stat(_existing(folder)).st_dev
    except OSError:
        return None


def _existing(folder: Path) -> Path:
    return next((each for each in (folder, *folder.parents) if each.is_dir()), folder)
