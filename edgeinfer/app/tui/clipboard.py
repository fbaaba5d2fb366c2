"""Copies text out of the app: to the terminal's clipboard and through a desktop program, or suggests a file.

In: text. Out: the outcome, in words that claim no more than is known. A terminal does not confirm that it took the
text, so that is "sent"; a program that exited with 0 has "copied". Knows no widgets.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from textual.app import App

TERMINAL_SURE_BYTES = 100_000  # many terminals truncate longer texts
TERMINAL_CAP_BYTES = 1_000_000  # longer texts block some terminals
TOOL_LIMIT_S = 1.0


@dataclass(frozen=True, slots=True)
class Copied:
    """Outcome of a copy: a sentence, and whether to offer saving to a file."""

    notice: str
    offer_file: bool = False


@dataclass(frozen=True, slots=True)
class ClipboardProgram:
    """A program that copies its standard input to the clipboard."""

    name: str
    arguments: tuple[str, ...] = ()
    encoding: str = "utf-8"


async def copy(app: App[object], text: str) -> Copied:
    """Send a text to the terminal's clipboard, and also to a clipboard program if there is one."""
    text = text.encode("utf-8", "replace").decode("utf-8")  # unpaired surrogates cannot be sent
    n_bytes = len(text.encode("utf-8"))
    if n_bytes <= TERMINAL_CAP_BYTES:
        app.copy_to_clipboard(text)
    tool = await asyncio.to_thread(copy_by_tool, text)
    return outcome(n_bytes, tool)


def outcome(n_bytes: int, tool: str | None) -> Copied:
    """The outcome for a text of `n_bytes` that was copied by `tool`, if any."""
    if tool is not None:
        return Copied(f"copied with {tool}")
    if n_bytes <= TERMINAL_SURE_BYTES:
        return Copied("sent to the terminal's clipboard")
    shown = f"{n_bytes / 1000:.0f} kB"
    if n_bytes <= TERMINAL_CAP_BYTES:
        return Copied(f"sent to the terminal's clipboard, but {shown} is more than many take; a file is safe", True)
    return Copied(f"not copied: {shown} is more than terminals take; save it to a file", True)


def copy_by_tool(text: str, environ: Mapping[str, str] | None = None, limit_s: float = TOOL_LIMIT_S) -> str | None:
    """Pass a text to the first program that accepts it. Returns its name, or None. `limit_s` covers all attempts."""
    environ = os.environ if environ is None else environ
    ends = time.monotonic() + limit_s
    for tool in tools(environ):
        program = shutil.which(tool.name, path=environ.get("PATH"))
        left_s = ends - time.monotonic()
        if program is None or left_s <= 0:
            continue
        try:
            # output would corrupt the screen, and programs that stay in the background would keep a pipe open
            done = subprocess.run(
                [program, *tool.arguments],
                input=text.encode(tool.encoding, "replace"),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=left_s,
                env=dict(environ),
                start_new_session=True,
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        if done.returncode == 0:
            return tool.name
    return None


def tools(environ: Mapping[str, str], platform: str = sys.platform) -> list[ClipboardProgram]:
    """Clipboard programs for this environment, best first."""
    if platform == "darwin":
        return [ClipboardProgram("pbcopy")]
    if platform == "win32":
        return [ClipboardProgram("clip.exe", encoding="utf-16")]
    found = [ClipboardProgram("wl-copy")] if environ.get("WAYLAND_DISPLAY") else []
    if environ.get("DISPLAY"):
        found += [
            ClipboardProgram("xclip", ("-selection", "clipboard")),
            ClipboardProgram("xsel", ("--clipboard", "--input")),
        ]
    if environ.get("WSL_DISTRO_NAME"):
        found.append(ClipboardProgram("clip.exe", encoding="utf-16"))
    return found
