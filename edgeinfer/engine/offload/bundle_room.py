"""Whether the disk has room for the bundle file of a model that does not fit in memory, asked before it is written.

In: where bundle files lie and how large one will be. Out: nothing, or an error with the numbers and what would work.
Does not know what is in a bundle file; who writes one looks again.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from edgeinfer.errors import DoesNotFit, PackFailed
from edgeinfer.models.download.space import size_text
from edgeinfer.models.store import default_root
from edgeinfer.offload.places import bundles_folder, part_path

REMEDY = "make room there, or set EDGEINFER_HOME to a folder on a larger disk"


def require_room_for_bundles(name: str, path: Path, bundle_bytes: int) -> None:
    """Raise PackFailed where a bundle file of so many bytes, which a model needs, has no room at `path`.

    What an earlier pack left there is gone on with, or makes room.
    """
    part = part_path(path)
    wanted_bytes = bundle_bytes - (part.stat().st_size if part.is_file() else 0)
    free_bytes = _free(path.parent)
    if free_bytes is not None and wanted_bytes > free_bytes:
        raise PackFailed(
            f"{name} does not fit into the memory it may have, and the bundle file that the rest would be read from "
            f"needs {size_text(wanted_bytes)} in {path.parent}, where {size_text(free_bytes)} are free; {REMEDY}"
        )


def require_room_after_download(name: str, model_bytes: int, bundle_bytes: int) -> None:
    """Raise DoesNotFit where a model that is to be fetched and the bundle file it will need have no room together."""
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
    """Bytes free where a folder is or will be; None where the system does not tell."""
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
