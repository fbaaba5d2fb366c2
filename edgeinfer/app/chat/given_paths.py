"""Paths as they are given to a program by hand: typed, quoted, pasted, or dropped on a terminal.

In: a text, a folder. Out: the files that it names, if it names existing files and says nothing else. Terminals paste a
dropped file as a path in quotes, with escaped spaces, or as a file:// address, and several of them in a row.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from edgeinfer.app.image_files import is_image_file
from edgeinfer.app.sound_files import is_sound_file
from edgeinfer.text_values import user_path

MOST_CHARACTERS, MOST_PATHS = 8192, 50


def given_paths(text: str, base: Path) -> list[Path]:
    """The existing files and folders that a text names, each once, in order; [] if it says anything else."""
    text = text.strip()
    if not text or len(text) > MOST_CHARACTERS:
        return []
    for names in _readings(text):
        if 0 < len(names) <= MOST_PATHS and all(names):
            paths = [base / user_path(name) for name in names]
            if all(map(_exists, paths)):
                return list(dict.fromkeys(paths))
    return []


def given_media(text: str, base: Path) -> list[Path]:
    """The same for a text that names images and sounds alone."""
    paths = given_paths(text, base)
    return paths if all(is_image_file(path) or is_sound_file(path) for path in paths) else []


def _readings(text: str) -> Iterator[list[str]]:
    """The ways in which a text may name paths."""
    yield [text]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    yield [_unquoted(line) for line in lines]
    if os.name == "posix":
        try:
            yield [_unquoted(word) for word in shlex.split(text)]
        except ValueError:  # a quotation mark without its partner
            return


def _unquoted(name: str) -> str:
    """A path without the quotes or the scheme around it."""
    if len(name) > 1 and name[0] == name[-1] and name[0] in "\"'":
        name = name[1:-1]
    if not name.lower().startswith("file://"):
        return name
    try:
        address = urlsplit(name)
    except ValueError:
        return name
    path = unquote(address.path) if address.netloc in ("", "localhost") else ""
    return path[1:] if path[2:3] == ":" else path  # /C:/…


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False
