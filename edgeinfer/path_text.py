"""Paths as text: inside files the bytes that the file system has, whatever the locale; ~ in what people write.

In: text with paths, or bytes. Out: the other. Under LC_ALL=C Python holds names outside ASCII as surrogates, which are
no UTF-8; and a name need not be UTF-8 under any locale. Does not know what else is in the file.
"""

from __future__ import annotations

import os
from pathlib import Path


def path_bytes(text: str) -> bytes:
    """A text with paths as a file has it: the paths' own bytes."""
    try:
        return os.fsencode(text)
    except UnicodeEncodeError:  # characters that no path can have under this locale
        return text.encode("utf-8", "surrogateescape")


def path_text(content: bytes) -> str:
    """What `path_bytes` wrote, with paths as this process opens them. Raises ValueError where no text is that."""
    return os.fsdecode(content)


def local_path(text: str) -> str:
    """A path that was written as proper text, such as in a configuration file, as this process opens it."""
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return os.fsdecode(text.encode("utf-8", "surrogateescape"))
    return text


def proper_text(path: str) -> str:
    """A path as proper text, for files that must be UTF-8. Raises ValueError for a name that is none."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8")


def user_path(text: str | Path) -> Path:
    """A path as people write it, ~ being the home folder. ~ of a user who is not there is a name like others."""
    try:
        return Path(text).expanduser()
    except (RuntimeError, ValueError):  # no such user; a zero byte
        return Path(text)
