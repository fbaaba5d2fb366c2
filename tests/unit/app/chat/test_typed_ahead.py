"""What is typed before the app has the terminal: it is read with its line ends, and the terminal is left as it was."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator

import pytest

from edgeinfer.app.chat.beginning import TypedAhead, typed_ahead, typed_text

termios = pytest.importorskip("termios")


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The keyboard's end of a terminal that standard input is."""
    keyboard, end = os.openpty()
    with os.fdopen(end, "r") as file:
        monkeypatch.setattr("sys.stdin", file)
        yield keyboard
    os.close(keyboard)


def test_enter_stays_enter_from_the_first_key_on(terminal: int) -> None:
    os.write(terminal, b"hello\rthe")
    import sys

    before = termios.tcgetattr(sys.stdin.fileno())
    with typed_ahead() as typed:
        assert typed == TypedAhead("hello\nthe", before)
        os.write(terminal, b"re\r")
        assert os.read(sys.stdin.fileno(), 10) == b"re\r"
    assert termios.tcgetattr(sys.stdin.fileno()) == before


def test_nothing_typed_is_not_waited_for(terminal: int) -> None:
    with typed_ahead() as typed:
        assert typed.text == ""


def test_without_a_terminal_nothing_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("text"))
    with typed_ahead() as typed:
        assert typed == TypedAhead()
    read, write = os.pipe()
    with os.fdopen(read) as file, os.fdopen(write, "w") as other:
        other.write("kept")
        other.flush()
        monkeypatch.setattr("sys.stdin", file)
        with typed_ahead() as typed:
            assert typed == TypedAhead()
        other.close()
        assert file.read() == "kept"


def test_only_signs_are_text() -> None:
    assert typed_text(b"a\x1b[A\x1b[1;5Cb\x1bOP\x03\tc\r\nd\xc3") == "abc\nd"
    assert typed_text("👨\u200d👩\r".encode()) == "👨\u200d👩\n"
