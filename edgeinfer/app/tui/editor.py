"""A draft in the user's own editor: $VISUAL, else $EDITOR, else one that is there.

In: text. Out: the text as the editor left it, or a notice that says why not and what would work. The app gives the
terminal away while the editor runs. Knows no widgets.
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
    """What an editor made of a text: the new text, or None and a notice."""

    text: str | None
    notice: str = ""


def edit_text(app: App[object], text: str) -> EditedText:
    """Let the user edit a text in an editor that has the terminal to itself until it ends."""
    from textual.app import SuspendNotSupported

    try:
        command = editor_command(os.environ)
        # within it nothing may be raised: the terminal would not be taken back
        with app.suspend():
            return run_editor(command, text)
    except EdgeInferError as error:
        return EditedText(None, str(error))
    except SuspendNotSupported:
        return EditedText(None, "no editor can be opened here; open the chat in a terminal of this machine for that")


def editor_command(environ: Mapping[str, str], platform: str = sys.platform) -> list[str]:
    """The program and its arguments. Raises EdgeInferError where none is set and none is found."""
    for variable in ("VISUAL", "EDITOR"):
        value = environ.get(variable, "").strip()
        if not value:
            continue
        try:
            # on Windows a backslash is part of a path
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
    """Run an editor on a file with a text, readable for this user alone; the file is removed afterwards."""
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
    """Editors end the last line; a message does not."""
    return text.replace("\r\n", "\n").removesuffix("\n")


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Within it Ctrl-C is the editor's alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # a handler, and not SIG_IGN, which the editor would inherit
    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
