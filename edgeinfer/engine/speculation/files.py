"""Files of speculation: tables learned for a model and kept for next time, and the user's texts to draft from.

Tables: a folder for each model in the user's data folder, with two files: `primed.npz`, which contains nothing about
any user, and `learnt.npz`, which contains tokens of texts and is readable only by the user. Files that are damaged or
have another layout are ignored; a file that cannot be written is skipped. Texts: tokens of each file, up to a limit in
all. Within folders, hidden files and files that are not UTF-8 are skipped; a file that is named explicitly must be
text.
"""

from __future__ import annotations

import contextlib
import os
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from edgeinfer.errors import BadSetting
from edgeinfer.graph.step import Int32s
from edgeinfer.models.text import Tokenizer
from edgeinfer.private_files import private_folder
from edgeinfer.temporary import remove_leftovers, temporary_file

MOST_TOKENS = 1 << 17
MOST_FILE_BYTES = 1 << 20
"""Larger files are read only up to this size."""


def file_texts(paths: Iterable[Path], tokenizer: Tokenizer) -> tuple[list[Int32s], str | None]:
    """Tokens of the files, int32 each, MOST_TOKENS in all; and a notice if something was left out.

    Raises BadSetting for a path that cannot be read or is not text.
    """
    texts: list[Int32s] = []
    room = MOST_TOKENS
    for path, text in _texts(paths):
        if not room:
            return texts, f"draft-from holds more than {MOST_TOKENS} tokens: {path} and what follows is left out"
        tokens = np.array(tokenizer.encode(text, add_special=False, parse_special=False)[:room], np.int32)
        texts.append(tokens)
        room -= len(tokens)
    return texts, None


def _texts(paths: Iterable[Path]) -> Iterator[tuple[Path, str]]:
    for path in paths:
        if path.is_dir():
            for found in sorted(path.rglob("*")):
                hidden = any(part.startswith(".") for part in found.relative_to(path).parts)
                if not hidden and found.is_file() and (text := _text_of(found)) is not None:
                    yield found, text
            continue
        try:
            text = _text_of(path)
        except OSError as reason:
            raise BadSetting(f"draft-from {path} cannot be read: {reason.strerror or reason}") from None
        if text is None:
            raise BadSetting(f"draft-from {path} is not UTF-8 text; it takes text files, folders of them, and models")
        yield path, text


def _text_of(path: Path) -> str | None:
    """The text of a file, or None if it is not text."""
    with path.open("rb") as file:
        data = file.read(MOST_FILE_BYTES)
    if b"\0" in data:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as reason:
        whole = reason.start > len(data) - 4 and len(data) == MOST_FILE_BYTES  # cut within a character
        return data[: reason.start].decode("utf-8") if whole else None


Arrays = Mapping[str, NDArray[Any]]

DAMAGES = (
    *(OSError, ValueError, KeyError, EOFError, SyntaxError, RuntimeError, MemoryError),
    *(OverflowError, zipfile.BadZipFile, zlib.error, struct.error),
)
"""What reading a damaged archive of arrays may raise."""
PRIMED, LEARNT = "primed.npz", "learnt.npz"
LAYOUT = "layout"


def default_root() -> Path:
    """The folder for what was learned, beside the models."""
    from edgeinfer.models.store import default_root as models_root

    return models_root().parent / "drafts"


class DraftFolder:
    """The saved tables of one model. `layout` is a key for everything that the arrays' meaning depends on."""

    def __init__(self, fingerprint: str, layout: str, root: Path | None = None) -> None:
        self.path = (root or default_root()) / fingerprint
        self._layout = layout

    def read(self, name: str) -> dict[str, NDArray[Any]]:
        """The arrays of a file; empty if there is no intact file of this layout."""
        remove_leftovers(self.path)  # of a program that was killed while it wrote
        try:
            with (self.path / name).open("rb") as raw:
                file = np.load(raw, allow_pickle=False)
                if not isinstance(file, NpzFile):  # one array alone
                    return {}
                arrays = {key: file[key] for key in file.files}
        except DAMAGES:
            return {}
        return arrays if str(arrays.pop(LAYOUT, "")) == self._layout else {}

    def write(self, name: str, arrays: Arrays) -> None:
        """Write a whole file, or nothing if that is not possible."""
        with contextlib.suppress(OSError):
            private_folder(self.path)
            handle, beside = temporary_file(self.path / name)  # readable only by the user
            try:
                with os.fdopen(handle, "wb") as file:
                    np.savez(file, **{LAYOUT: np.array(self._layout)}, **arrays)  # type: ignore[arg-type]
                os.replace(beside, self.path / name)
            except BaseException:
                Path(beside).unlink(missing_ok=True)
                raise


def clear_history(root: Path | None = None) -> int:
    """Delete what was learned from texts, for all models. Returns the number of deleted files."""
    found = sorted((root or default_root()).glob(f"*/{LEARNT}"))
    for path in found:
        path.unlink()
    return len(found)
