"""Captures what is typed while the app is still starting.

Until the app has the terminal, its driver turns Enter into a line feed, which the app would take for Ctrl+J, a new
line. This module sets the terminal early to leave Enter unchanged; whatever was typed before that is read, and passed
on as text in which every line end was an Enter.

In: a terminal. Out: the text, and the terminal's previous mode, which is restored at the end. Does nothing elsewhere.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

MOST_BYTES = 65_536
_SEQUENCE = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|O.|.)?", re.DOTALL)
"""Keys that are not characters, such as arrows."""

Mode = list[object]
"""The result of `termios.tcgetattr`."""


@dataclass(frozen=True, slots=True)
class TypedAhead:
    """Text that was typed, with line ends as \\n, and the terminal's previous mode."""

    text: str = ""
    mode: Mode | None = None


@contextmanager
def typed_ahead() -> Iterator[TypedAhead]:
    """Inside this context the terminal of standard input passes every key unchanged and echoes none."""
    found = _begin()
    try:
        yield found
    finally:
        if found.mode is not None:
            _set(found.mode)


def _begin() -> TypedAhead:
    try:
        import termios

        fd = sys.stdin.fileno()
        mode = termios.tcgetattr(fd)
    except (ImportError, OSError, ValueError, termios.error):  # Windows, or no terminal
        return TypedAhead()
    plain = [*mode[:6], list(mode[6])]
    plain[0] &= ~(termios.ICRNL | termios.INLCR | termios.IGNCR)
    plain[3] &= ~(termios.ICANON | termios.ECHO)
    plain[6][termios.VMIN], plain[6][termios.VTIME] = 0, 0  # read what is available, without waiting
    _set(plain)
    try:
        data = os.read(fd, MOST_BYTES)
    except OSError:
        data = b""
    return TypedAhead(typed_text(data), mode)


def _set(mode: Mode) -> None:
    import termios

    try:
        termios.tcsetattr(sys.stdin.fileno(), termios.TCSANOW, mode)  # type: ignore[arg-type]
    except (OSError, ValueError, termios.error):  # the terminal is gone
        return


def typed_text(data: bytes) -> str:
    """The characters that a terminal sent, with line ends as \\n, without keys that are not characters."""
    text = _SEQUENCE.sub("", data.decode("utf-8", "ignore")).replace("\r\n", "\n").replace("\r", "\n")
    return "".join(sign for sign in text if sign == "\n" or sign.isprintable() or sign in "\u200c\u200d")
