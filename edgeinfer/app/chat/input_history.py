"""History of the composer's inputs, saved between runs.

In: texts. Out: the same texts, oldest first, without duplicates. One JSON string per line, so that an entry may span
lines; several instances append to the same file. A file that cannot be used is left alone. Knows no widgets.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from edgeinfer.private_files import readable_folder
from edgeinfer.temporary import temporary_path

ENTRIES_CAP = 1000
ENTRY_CAP_CHARACTERS = 65_536
READ_CAP_BYTES = 16 << 20
PRIVATE = 0o600
LOCK_STEP_S = 0.005
LOCK_PATIENCE_S = 0.5
"""Shortening the file takes milliseconds, more on a busy machine; input must not wait longer than this."""


def history_path() -> Path:
    """The file of inputs, beside the saved chats."""
    from edgeinfer.models.store_files import default_root

    return default_root().parent / "inputs.jsonl"


class InputHistory:
    """The inputs of this and earlier runs. Without a path they last as long as the object."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._entries: dict[str, None] = {}
        if path is not None:
            self._read(path)

    @property
    def entries(self) -> tuple[str, ...]:
        """Oldest first; a repeated text appears once, where it was last used."""
        return tuple(self._entries)

    def add(self, text: str) -> None:
        """Add a text as the newest."""
        text = text.strip("\n")
        if not text.strip() or len(text) > ENTRY_CAP_CHARACTERS:
            return
        if next(reversed(self._entries), None) == text:
            return
        self._entries.pop(text, None)
        self._entries[text] = None
        while len(self._entries) > ENTRIES_CAP:
            del self._entries[next(iter(self._entries))]
        if self._path is not None:
            with suppress(OSError):
                self._append(self._path, text)

    def _append(self, path: Path, text: str) -> None:
        readable_folder(path.parent)
        with _locked(path):
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, PRIVATE)
            try:
                os.write(descriptor, _line(text))
            finally:
                os.close(descriptor)

    def _read(self, path: Path) -> None:
        with suppress(OSError):
            self._entries, n_lines = _entries_of(path)
            if n_lines > 2 * ENTRIES_CAP:
                self._shorten(path)

    def _shorten(self, path: Path) -> None:
        """Rewrite the file with the current entries only, unless another instance holds its lock."""
        with _locked(path) as held:
            if not held:
                return
            self._entries, _ = _entries_of(path)  # another instance may have appended before the lock was taken
            temporary = temporary_path(path)
            try:
                descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, PRIVATE)
                with os.fdopen(descriptor, "wb") as file:
                    file.writelines(map(_line, self._entries))
                temporary.replace(path)
            finally:
                temporary.unlink(missing_ok=True)


class HistoryWalk:
    """A cursor that moves through the history from the draft backwards, and back to the draft."""

    def __init__(self, history: InputHistory) -> None:
        self._history = history
        self.reset()

    def reset(self) -> None:
        """Return to the draft."""
        self._shown: tuple[str, ...] = ()
        self._back = 0
        self._draft = ""

    def older(self, text: str) -> str | None:
        """The next older text, None at the oldest. On the first step `text` is saved as the draft."""
        if self._back == 0:
            self._shown, self._draft = self._history.entries, text
        if self._back == len(self._shown):
            return None
        self._back += 1
        return self._shown[-self._back]

    def newer(self) -> str | None:
        """The next newer text, finally the draft; None at the draft."""
        if self._back == 0:
            return None
        self._back -= 1
        return self._shown[-self._back] if self._back else self._draft


def _entries_of(path: Path) -> tuple[dict[str, None], int]:
    """The newest entries of a file, and how many lines it has."""
    with path.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - READ_CAP_BYTES))
        lines = file.read(READ_CAP_BYTES).splitlines()
    entries: dict[str, None] = {}
    for text in filter(None, map(_text_of, lines)):
        entries.pop(text, None)
        entries[text] = None
    return dict.fromkeys(list(entries)[-ENTRIES_CAP:]), len(lines)


def _line(text: str) -> bytes:
    return json.dumps(text).encode("ascii") + b"\n"


def _text_of(line: bytes) -> str | None:
    try:
        text = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return text if isinstance(text, str) and text.strip() else None


@contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Take the lock beside a file, waiting only briefly; yields whether it is held."""
    if sys.platform == "win32":
        yield True  # no lock: Windows cannot replace a file that another process has open
        return
    import fcntl

    descriptor = os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT, PRIVATE)
    ends = time.monotonic() + LOCK_PATIENCE_S
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                if time.monotonic() > ends:
                    yield False
                    return
                time.sleep(LOCK_STEP_S)
            else:
                yield True
                return
    finally:
        os.close(descriptor)
