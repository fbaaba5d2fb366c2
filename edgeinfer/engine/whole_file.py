"""Small files that are written whole or not at all.

In: a path and a text. Out: whether it could be written. Others see all of it or what was there before.
"""

from __future__ import annotations

import os
from pathlib import Path

from edgeinfer.temporary import temporary_file


def write_whole(path: Path, text: str) -> bool:
    """Write a file; False where the disk, or the folder, does not take it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = temporary_file(path)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError:
        return False
    return True
