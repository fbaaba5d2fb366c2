"""The user's own files as a source of drafts: which of a path's files are text, and their tokens.

In: files and folders. Out: tokens of each file, up to a limit in all. Hidden files, and files that are not UTF-8,
are left out of folders; a file that is named itself must be text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from edgeinfer.errors import BadSetting
from edgeinfer.graph.step import Int32s
from edgeinfer.models.text import Tokenizer

MOST_TOKENS = 1 << 17
MOST_FILE_BYTES = 1 << 20
"""Larger files are read up to here."""


def file_texts(paths: Iterable[Path], tokenizer: Tokenizer) -> tuple[list[Int32s], str | None]:
    """Tokens of the files, int32 each, MOST_TOKENS in all; and a notice if that left some out.

    Raises BadSetting for a path that cannot be read or is no text.
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
    """A file's text, None where it is none."""
    with path.open("rb") as file:
        data = file.read(MOST_FILE_BYTES)
    if b"\0" in data:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as reason:
        whole = reason.start > len(data) - 4 and len(data) == MOST_FILE_BYTES  # cut within a character
        return data[: reason.start].decode("utf-8") if whole else None
