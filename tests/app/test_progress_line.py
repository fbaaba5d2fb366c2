"""The line of progress: it moves while a step reports nothing, and says in plain lines what takes long elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from io import StringIO

import pytest

from edgeinfer.app import progress
from edgeinfer.app.answer_output import print_answer
from edgeinfer.app.progress import ProgressLine
from edgeinfer.steps import COMPILING


def wait_for(capsys: pytest.CaptureFixture[str], wanted: str, least: int) -> str:
    """What was written, once `wanted` is in it so many times."""
    seen, until = "", time.monotonic() + 60
    while seen.count(wanted) < least and time.monotonic() < until:
        seen += capsys.readouterr().err
        time.sleep(0.01)
    return seen


def test_a_step_that_reports_nothing_is_drawn_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "QUIET_S", 0.0)
    monkeypatch.setattr(progress, "REDRAW_S", 0.01)
    monkeypatch.setattr(progress, "BETWEEN_S", 0.0)
    with ProgressLine(terminal=True) as line:
        line("trying cpu", 0, 3)
        assert wait_for(capsys, "\rtrying cpu", 4).count("\rtrying cpu") >= 4
        line.clear()
        capsys.readouterr()
        time.sleep(0.05)
        assert capsys.readouterr().err == ""


def test_without_a_terminal_compiling_is_announced_once(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressLine(terminal=False, quiet_s=60) as line:
        line("loading the model", 0, 0)
        for done in range(10):
            line(COMPILING, done, 9)
    written = capsys.readouterr().err
    assert written.startswith(f"{COMPILING}: 0 of 9, about ")
    assert written.count("\n") == 1


def test_without_a_terminal_what_takes_long_is_said_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "FIRST_LINE_S", 0.02)
    monkeypatch.setattr(progress, "LINES_S", 0.02)
    monkeypatch.setattr(progress, "REDRAW_S", 0.01)
    with ProgressLine(terminal=False) as line:
        line("trying cpu", 0, 3)
        assert wait_for(capsys, "trying cpu: 0 of 3\n", 2).count("\n") >= 2


def test_without_a_terminal_quick_work_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressLine(terminal=False, quiet_s=60) as line:
        for done in range(4):
            line("trying cpu", done, 3)
    assert capsys.readouterr().err == ""


def test_a_line_makes_way_for_what_is_printed_and_the_step_goes_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "REDRAW_S", 0.01)
    monkeypatch.setattr(progress, "BETWEEN_S", 0.0)
    with ProgressLine(terminal=True, quiet_s=0) as line:
        line("answering prompts", 1, 4)
        began_s = line._clock.step.began_s  # type: ignore[union-attr]
        line.make_way()
        assert capsys.readouterr().err.endswith("\r")
        time.sleep(0.05)
        assert capsys.readouterr().err == "", "nothing is drawn until the next report"
        line("answering prompts", 2, 4)
        assert "2 of 4" in capsys.readouterr().err
        assert line._clock.step.began_s == began_s  # type: ignore[union-attr]


class NarrowErrors(StringIO):
    """A stream of a terminal that knows ASCII alone."""

    encoding = "ascii"


@pytest.mark.parametrize(
    ("stream", "drawn"),
    [pytest.param(StringIO(), "██████░░░░░░", id="utf8"), pytest.param(NarrowErrors(), "[######......]", id="ascii")],
)
def test_bars_are_drawn_as_the_terminal_can_write_them(
    stream: StringIO, drawn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    with ProgressLine(terminal=True, quiet_s=0) as line:
        line("packing weights", 2, 4)
    assert f"packing weights {drawn} 2 of 4" in stream.getvalue()


def test_a_report_after_the_end_shows_nothing_and_starts_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    written = StringIO()
    monkeypatch.setattr(sys, "stderr", written)
    before = set(threading.enumerate())
    with ProgressLine(terminal=True) as line:
        pass
    line._next_s = 0.0
    line("compiling", 1, 2)
    assert written.getvalue() == ""
    assert set(threading.enumerate()) <= before


class ReadThenText:
    """A stream that reads its prompt with progress, then gives text, slowly."""

    text = "one two"
    reader = None

    def __init__(self, progress: ProgressLine) -> None:
        self._progress = progress

    def __iter__(self) -> Iterator[str]:
        self._progress("reading the prompt", 0, 19)
        self._progress("reading the prompt", 19, 19)
        for piece in ("one ", "two"):
            yield piece
            sys.stderr.write("|")
            time.sleep(0.05)

    def stop(self) -> None:
        raise AssertionError("nobody stops it")


def test_nothing_is_drawn_over_an_answer(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("QUIET_S", 0.0), ("REDRAW_S", 0.01), ("BETWEEN_S", 0.0)):
        monkeypatch.setattr(progress, name, seconds)
    with ProgressLine(terminal=True) as shown:
        assert not print_answer(ReadThenText(shown), progress=shown)  # type: ignore[arg-type]
        time.sleep(0.05)
        printed = capsys.readouterr()
    assert printed.out == "one two\n"
    assert "19 of 19" in printed.err
    assert printed.err[printed.err.index("|") :] == "||"
