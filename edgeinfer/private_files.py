"""Files and folders that other users of this computer cannot change, and where they are private cannot read either.

In: paths. Out: folders, descriptors for `open(…, opener=…)`, the content of files that nobody else wrote. Whatever the
umask is, others get no permission that is not meant. On Windows the access list of the user's profile decides.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

OTHERS_WRITE = 0o022


def private_folder(path: Path) -> None:
    """Make a folder for this user alone, and those that it lies in; what is there stays as it is. Raises OSError."""
    _make(path, 0o700)


def readable_folder(path: Path) -> None:
    """Make a folder that others may read, and those that it lies in; what is there stays as it is. Raises OSError."""
    _make(path, 0o755)


def privately(path: str, flags: int) -> int:
    """An opener of files for this user alone."""
    return os.open(path, flags, 0o600)


def readably(path: str, flags: int) -> int:
    """An opener of files that others may read."""
    return os.open(path, flags, 0o644)


def read_own(path: Path) -> bytes:
    """The content of a file that this user or root wrote, and nobody else could. Raises OSError.

    On file systems without permissions everybody may write everything, and nothing is known of who did.
    """
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        if sys.platform != "win32" and (
            status.st_uid not in (os.geteuid(), 0) or _was_open(file.fileno(), status.st_mode)
        ):
            raise PermissionError(f"{path} may have been written by another user")
        return file.read()


def _was_open(descriptor: int, mode: int) -> bool:
    """Whether others could write a file; from now on they cannot."""
    if sys.platform == "win32" or not mode & OTHERS_WRITE:
        return False
    try:
        os.fchmod(descriptor, mode & 0o777 & ~OTHERS_WRITE)
    except OSError:
        return True
    return not os.fstat(descriptor).st_mode & OTHERS_WRITE


def _make(path: Path, mode: int) -> None:
    if not path.parent.exists():
        _make(path.parent, 0o755)
    path.mkdir(mode=mode, exist_ok=True)
