"""Whether the terminal draws pictures in pixels, and how: it is asked before the app takes it over.

In: the environment, the terminal. Out: a `PixelTerminal`, and what was typed before the answers came. Only terminals
are asked of which the environment says that they may draw pictures: these answer at once, others might not at all.
Inside tmux, screen and the like nothing is asked, since what they pass on depends on what is around them.

Kitty's Unicode placeholders are cells of text, which scroll and clip as any others; of the terminals that answer
Kitty's own query most know none, hence the terminal's name decides. Sixel paints over cells, and needs the package
textual-image.
"""

from __future__ import annotations

import importlib.util
import os
import re
import select
import struct
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from edgeinfer.app.chat.beginning import TypedAhead, typed_text

PixelProtocol = Literal["none", "kitty", "sixel"]
SIXEL_PACKAGE = "textual_image"

QUESTION = b"\x1b[>q\x1b[16t\x1b[c"
"""Name and version (XTVERSION), size of a cell in pixels, features (DA1). Every terminal answers the last one."""
_NAME = re.compile(rb"\x1bP>\|([^\x1b]*)\x1b\\")
_CELL = re.compile(rb"\x1b\[6;(\d{1,4});(\d{1,4})t")
_FEATURES = re.compile(rb"\x1b\[\?([\d;]*)c")
_SIXEL_FEATURE = b"4"

PATIENCE_S = 1.0
"""Time within which the answers must be there: no more than a slow line to another machine needs."""
MULTIPLEXED = ("TMUX", "STY", "ZELLIJ")
_KITTY_TERMS = ("xterm-kitty", "xterm-ghostty")
_SIXEL_TERMS = ("foot", "contour", "mlterm", "mintty")
_PROGRAMS = ("ghostty", "iTerm.app", "WezTerm", "vscode", "mintty", "contour")
_PROGRAM_VARIABLES = ("XTERM_VERSION", "KONSOLE_VERSION")
_FIRST_KITTY = (0, 28)
"""The first version with Unicode placeholders."""
DEFAULT_CELL = (10, 20)


@dataclass(frozen=True, slots=True)
class PixelTerminal:
    """How a terminal draws pictures in pixels. `cell`: width and height of its cells in pixels."""

    protocol: PixelProtocol = "none"
    cell: tuple[int, int] = DEFAULT_CELL


def may_draw_pixels(environ: Mapping[str, str]) -> bool:
    """Whether the environment speaks of a terminal that draws pictures in pixels."""
    term = environ.get("TERM", "")
    if any(environ.get(name) for name in MULTIPLEXED) or term.startswith(("tmux", "screen")):
        return False
    if importlib.util.find_spec("PIL") is None:  # nothing could be decoded
        return False
    if term in _KITTY_TERMS:
        return True
    is_program = environ.get("TERM_PROGRAM") in _PROGRAMS or any(environ.get(name) for name in _PROGRAM_VARIABLES)
    return term.startswith(_SIXEL_TERMS) or (term.startswith("xterm") and is_program)


def ask_terminal(
    typed: TypedAhead, environ: Mapping[str, str], patience_s: float = PATIENCE_S
) -> tuple[PixelTerminal, TypedAhead]:
    """Ask the terminal of standard input and error, which must not echo. Returns what it is, and all that was typed.

    Where `typed` has no mode, or the environment does not speak of such a terminal, nothing is asked.
    """
    if typed.mode is None or sys.__stderr__ is None or not may_draw_pixels(environ):
        return PixelTerminal(), typed
    try:
        source, target = sys.stdin.fileno(), sys.__stderr__.fileno()  # what Textual draws on
        if not os.isatty(target):
            return PixelTerminal(), typed
        os.write(target, QUESTION)
        data = _answers(source, patience_s)
        cell = window_cell(target)
    except (OSError, ValueError):  # the terminal is gone
        return PixelTerminal(), typed
    rest = data
    for answer in (_NAME, _CELL, _FEATURES):
        rest = answer.sub(b"", rest)
    return pixel_terminal(data, cell), TypedAhead(typed.text + typed_text(rest), typed.mode)


def _answers(source: int, patience_s: float) -> bytes:
    """What comes until the last question is answered."""
    data, ends = b"", time.monotonic() + patience_s
    while not _FEATURES.search(data):
        left_s = ends - time.monotonic()
        if left_s <= 0 or not select.select([source], [], [], left_s)[0]:
            break
        piece = os.read(source, 4096)
        if not piece:
            break
        data += piece
    return data


def window_cell(file: int) -> tuple[int, int] | None:
    """Width and height of a cell by the window's size; None where that is not told in pixels. Raises OSError."""
    if sys.platform == "win32":  # consoles tell no pixels
        return None
    import fcntl
    import termios

    rows, columns, width, height = struct.unpack("HHHH", fcntl.ioctl(file, termios.TIOCGWINSZ, bytes(8)))
    cell = (width // columns, height // rows) if rows and columns else (0, 0)
    return cell if all(cell) else None


def pixel_terminal(answers: bytes, window: tuple[int, int] | None = None) -> PixelTerminal:
    """The terminal that gave these answers. `window`: the size of a cell by that of the window; xterm tells only that.

    Sixel needs a size: a picture that is taller than its cells scrolls the screen.
    """
    name, told, features = _NAME.search(answers), _CELL.search(answers), _FEATURES.search(answers)
    cell = (int(told[2]), int(told[1])) if told is not None and int(told[1]) and int(told[2]) else window
    if name is not None and _has_placeholders(name[1].decode("ascii", "replace")):
        return PixelTerminal("kitty", cell or DEFAULT_CELL)
    has_sixel = features is not None and _SIXEL_FEATURE in features[1].split(b";")[1:]
    if has_sixel and cell is not None and importlib.util.find_spec(SIXEL_PACKAGE) is not None:
        return PixelTerminal("sixel", cell)
    return PixelTerminal("none", cell or DEFAULT_CELL)


def _has_placeholders(name: str) -> bool:
    """Whether the terminal of this name and version knows Kitty's Unicode placeholders."""
    kitty = re.match(r"kitty\((\d+)\.(\d+)", name)
    if kitty is not None:
        return (int(kitty[1]), int(kitty[2])) >= _FIRST_KITTY
    return name.startswith("ghostty")
