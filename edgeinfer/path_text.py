"""Conversion between paths and text: raw path bytes in files, whatever the locale, and ~ in user input.

In: text with paths, or bytes. Out: the other. Under LC_ALL=C Python holds non-ASCII names as surrogates, which are not
valid UTF-8, and under any locale a name need not be UTF-8. Does not know what else is in the file.
"""

from __future__ import annotations

import os
from pathlib import Path


def path_bytes(text: str) -> bytes:
    """Encode text that contains paths for a file, using the paths' own bytes."""
    try:
        return os.fsencode(text)
    except UnicodeEncodeError:  # characters that no path can have under this locale
        return text.encode("utf-8", "surrogateescape")


def path_text(content: bytes) -> str:
    """Decode what `path_bytes` wrote, with paths as this process opens them. Raises ValueError if it cannot."""
    return os.fsdecode(content)


def local_path(text: str) -> str:
    """Convert a path written as proper Unicode, such as in a configuration file, to the form this process opens."""
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return os.fsdecode(text.encode("utf-8", "surrogateescape"))
    return text


def proper_text(path: str) -> str:
    """A path as proper Unicode, for files that must be UTF-8. Raises ValueError if the name is not UTF-8."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8")


def user_path(text: str | Path) -> Path:
    """Expand ~ in a path typed by a user. ~name of an unknown user is treated as an ordinary name."""
    try:
        return Path(text).expanduser()
    except (RuntimeError, ValueError):  # no such user, or a zero byte
        return Path(text)
