"""How a chat begins: empty, with the last saved chat, with a question, and with what was typed while the app started.

Until the app has the terminal, its driver turns Enter into a line feed, which the app would take for Ctrl+J, a new
line. `typed_ahead` sets the terminal early to leave Enter unchanged; whatever was typed before that is read, and passed
on as text in which every line end was an Enter.

In: the command line's options, the saved chats, a terminal. Out: the chat to begin with, the text, and the terminal's
previous mode, which is restored at the end. Elsewhere than in a terminal nothing is captured.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgeinfer.app.sessions.chat import Chat
    from edgeinfer.app.sessions.store import SessionStore

NO_EARLIER = "there is no earlier chat to continue; this is a new one"


@dataclass(frozen=True, slots=True)
class Beginning:
    """What the command line asks for. `system`: its system prompt, which also applies to an earlier chat."""

    continues: bool = False
    question: str = ""
    system: str | None = None


def last_chat(store: SessionStore, system: str | None = None, *, other_than: int | None = None) -> Chat | None:
    """The saved chat that was changed last, with another system prompt if one is given; None if there is none.

    `other_than`: the number of an open chat, which is passed over.
    """
    from edgeinfer.app.sessions.chat import Chat

    kept = [session for session in store.sessions(limit=2) if session.number != other_than]
    if not kept:
        return None
    chat = Chat(store, kept[0])
    if system is not None:
        chat.system = system
    return chat


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
    if sys.platform == "win32":  # there is no module termios
        return TypedAhead()
    import termios

    try:
        fd = sys.stdin.fileno()
        mode = termios.tcgetattr(fd)
    except (OSError, ValueError, termios.error):  # no terminal
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
    if sys.platform == "win32":
        return
    import termios

    try:
        termios.tcsetattr(sys.stdin.fileno(), termios.TCSANOW, mode)  # type: ignore[arg-type, unused-ignore]
    except (OSError, ValueError, termios.error):  # the terminal is gone
        return


def typed_text(data: bytes) -> str:
    """The characters that a terminal sent, with line ends as \\n, without keys that are not characters."""
    text = _SEQUENCE.sub("", data.decode("utf-8", "ignore")).replace("\r\n", "\n").replace("\r", "\n")
    return "".join(sign for sign in text if sign == "\n" or sign.isprintable() or sign in "\u200c\u200d")
