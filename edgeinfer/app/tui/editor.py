"""Edits a draft in the user's editor: $VISUAL, else $EDITOR, else a common editor that is installed.

In: text. Out: the edited text, or a notice that says why there is none and what to do. The app is suspended while the
editor has the terminal. Knows no widgets.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgeinfer.errors import EdgeInferError

if TYPE_CHECKING:
    from textual.app import App

COMMON_EDITORS = ("nano", "vim", "vi")
WHAT_WORKS = "set $EDITOR to an editor, for example EDITOR=nano"


@dataclass(frozen=True, slots=True)
class EditedText:
    """Result of an editor run: the new text, or None and a notice."""

    text: str | None
    notice: str = ""


def edit_text(app: App[object], text: str) -> EditedText:
    """Edit a text in an editor, which has the terminal to itself until it exits."""
    from textual.app import SuspendNotSupported

    try:
        command = editor_command(os.environ)
        # nothing may raise in this block, or the terminal would not be restored
        with app.suspend():
            return run_editor(command, text)
    except EdgeInferError as error:
        return EditedText(None, str(error))
    except SuspendNotSupported:
        return EditedText(None, "no editor can be opened here; open the chat in a terminal of this machine for that")


def editor_command(environ: Mapping[str, str], platform: str = sys.platform) -> list[str]:
    """The editor's command line. Raises EdgeInferError if none is set and none is found."""
    for variable in ("VISUAL", "EDITOR"):
        value = environ.get(variable, "").strip()
        if not value:
            continue
        try:
            # on Windows the backslash is a path separator
            return [part.strip('"') for part in shlex.split(value, posix=platform != "win32")]
        except ValueError as error:
            raise EdgeInferError(f"${variable} is {value!r}: {str(error).lower()}; {WHAT_WORKS}") from None
    if platform == "win32":
        return ["notepad"]
    for name in COMMON_EDITORS:
        if shutil.which(name, path=environ.get("PATH")):
            return [name]
    raise EdgeInferError(f"no editor is set; {WHAT_WORKS}")


def run_editor(command: list[str], text: str) -> EditedText:
    """Run an editor on a temporary file that only this user can read; the file is removed afterwards."""
    shown = shlex.join(command)
    try:
        with tempfile.TemporaryDirectory(prefix="edgeinfer-", ignore_cleanup_errors=True) as folder:
            path = Path(folder) / "message.md"
            path.write_bytes(text.encode("utf-8", "replace"))
            with _interrupts_ignored():
                status = subprocess.run([*command, str(path)]).returncode
            if status:
                return EditedText(None, f"{shown} ended with status {status}; the draft is as it was")
            return EditedText(_without_last_line_end(path.read_bytes().decode("utf-8", "replace")))
    except FileNotFoundError:
        return EditedText(None, f"{shown} was not found, or left no file; {WHAT_WORKS}")
    except (OSError, ValueError) as error:
        reason = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
        return EditedText(None, f"{shown} could not be run: {reason.lower()}; {WHAT_WORKS}")


def _without_last_line_end(text: str) -> str:
    """Remove the newline that editors add at the end of the file."""
    return text.replace("\r\n", "\n").removesuffix("\n")


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Ignore Ctrl-C in this process, so that only the editor gets it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # a handler instead of SIG_IGN, because the editor would inherit SIG_IGN
    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
