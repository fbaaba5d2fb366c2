"""What a terminal is asked, and what follows from its answers."""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Iterator, Mapping

import pytest

from edgeinfer.app.chat.beginning import TypedAhead, typed_ahead
from edgeinfer.app.tui.graphics import pixel_terminal as module
from edgeinfer.app.tui.graphics.pixel_terminal import (
    QUESTION,
    PixelTerminal,
    ask_terminal,
    may_draw_pixels,
    pixel_terminal,
    window_cell,
)

KITTY = {"TERM": "xterm-kitty"}
CELL, FEATURES, SIXEL = b"\x1b[6;18;9t", b"\x1b[?62;22c", b"\x1b[?62;4;22c"


@pytest.mark.parametrize(
    ("environment", "may"),
    [
        ({"TERM": "xterm-kitty"}, True),
        ({"TERM": "xterm-ghostty"}, True),
        ({"TERM": "xterm-256color", "TERM_PROGRAM": "ghostty"}, True),
        ({"TERM": "xterm-256color", "TERM_PROGRAM": "iTerm.app"}, True),
        ({"TERM": "xterm-256color", "KONSOLE_VERSION": "230805"}, True),
        ({"TERM": "foot-extra"}, True),
        ({"TERM": "xterm-256color"}, False),
        ({"TERM": "linux"}, False),
        ({"TERM": "eterm-color", "TERM_PROGRAM": "WezTerm"}, False),
        ({"TERM": "xterm-kitty", "TMUX": "/tmp/tmux,1,0"}, False),
        ({"TERM": "xterm-kitty", "STY": "1.pts"}, False),
        ({"TERM": "xterm-kitty", "ZELLIJ": "0"}, False),
        ({"TERM": "screen.xterm-kitty"}, False),
        ({"TERM": "tmux-256color", "TERM_PROGRAM": "ghostty"}, False),
        ({}, False),
    ],
)
def test_only_terminals_that_may_draw_pixels_are_asked(environment: Mapping[str, str], may: bool) -> None:
    assert may_draw_pixels(environment) is may


def test_without_a_decoder_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    assert not may_draw_pixels(KITTY)


@pytest.mark.parametrize(
    ("name", "protocol"),
    [
        (b"kitty(0.28.0)", "kitty"),
        (b"kitty(1.0.0)", "kitty"),
        (b"kitty(0.27.1)", "none"),
        (b"kitty", "none"),
        (b"ghostty 1.1.3", "kitty"),
        (b"WezTerm 20240203", "none"),
        (b"Konsole 23.08.5", "none"),
        (b"\xff", "none"),
    ],
)
def test_the_name_says_whether_there_are_placeholders(name: bytes, protocol: str) -> None:
    assert pixel_terminal(b"\x1bP>|" + name + b"\x1b\\" + CELL + FEATURES) == PixelTerminal(protocol, (9, 18))


def test_sixel_takes_the_feature_and_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: object())
    assert pixel_terminal(CELL + SIXEL).protocol == "sixel"
    assert pixel_terminal(CELL + b"\x1b[?4;22c").protocol == "none"  # a class of terminals, no feature
    assert pixel_terminal(CELL + FEATURES).protocol == "none"
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    assert pixel_terminal(CELL + SIXEL).protocol == "none"


def test_a_cell_that_is_not_told_is_measured_by_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: object())
    assert pixel_terminal(SIXEL, (8, 16)) == PixelTerminal("sixel", (8, 16))
    assert pixel_terminal(CELL + SIXEL, (8, 16)) == PixelTerminal("sixel", (9, 18))
    assert pixel_terminal(SIXEL).protocol == "none"  # a picture too tall would scroll the screen


def test_the_size_of_a_window_in_pixels(terminal: int) -> None:
    import fcntl
    import termios

    assert window_cell(terminal) is None
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 45, 140, 1121, 735))
    assert window_cell(terminal) == (8, 16)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 45, 140, 100, 10))
    assert window_cell(terminal) is None


def test_strange_answers_are_no_size() -> None:
    for answer in (b"", b"\x1b[6;0;0t", b"\x1b[6;99999;9t", b"\x1b[6;t"):
        assert pixel_terminal(answer + FEATURES) == PixelTerminal()


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The other end of a terminal that standard input and error are."""
    pytest.importorskip("termios")
    other, end = os.openpty()
    with os.fdopen(end, "r", closefd=False) as source, os.fdopen(end, "w") as target:
        monkeypatch.setattr("sys.stdin", source)
        monkeypatch.setattr("sys.__stderr__", target)
        yield other
    os.close(other)


def answer(terminal: int, *pieces: bytes) -> threading.Thread:
    """Answer the question, piece by piece."""

    def run() -> None:
        asked = b""
        while not asked.endswith(QUESTION):
            asked += os.read(terminal, 100)
        for piece in pieces:
            os.write(terminal, piece)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_what_is_typed_before_the_answers_is_kept(terminal: int) -> None:
    thread = answer(terminal, b"he\x1bP>|kit", b"ty(0.36.4)\x1b\\l", CELL + b"lo\r", FEATURES)
    with typed_ahead() as typed:
        found, then = ask_terminal(typed, KITTY)
    thread.join()
    assert found == PixelTerminal("kitty", (9, 18))
    assert then == TypedAhead("hello\n", typed.mode)


def test_a_terminal_that_answers_nothing_is_not_waited_for(terminal: int) -> None:
    thread = answer(terminal, b"x")
    with typed_ahead() as typed:
        found, then = ask_terminal(typed, KITTY, patience_s=0.2)
    thread.join()
    assert found == PixelTerminal()
    assert then.text == "x"


def test_a_terminal_that_echoes_is_not_asked(terminal: int) -> None:
    typed = TypedAhead("typed")
    assert ask_terminal(typed, KITTY) == (PixelTerminal(), typed)
    os.set_blocking(terminal, False)
    with pytest.raises(BlockingIOError):
        os.read(terminal, 1)


def test_what_is_no_terminal_is_not_asked(terminal: int, monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    read, write = os.pipe()
    with typed_ahead() as typed, os.fdopen(read) as kept, os.fdopen(write, "w") as file:
        monkeypatch.setattr("sys.__stderr__", file)
        assert ask_terminal(typed, KITTY) == (PixelTerminal(), typed)
        file.close()
        assert kept.read() == ""
