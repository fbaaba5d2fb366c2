"""How far a step is, in words: a bar, how much, how fast, how long, and each step counted for itself."""

from __future__ import annotations

import pytest

from edgeinfer.app.step_clock import StepClock, bar_text, duration, rate_text
from edgeinfer.steps import COMPILING, DETAIL


class Clock:
    """A step clock whose time is set."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.step = StepClock(lambda: self.now_s)

    def at(self, now_s: float, what: str, done: int, total: int) -> str:
        self.now_s = now_s
        self.step(what, done, total)
        return self.step.line()


def test_each_step_is_counted_for_itself() -> None:
    clock = Clock()
    assert clock.step.line() == ""
    assert clock.at(0, "opening", 0, 0) == "opening"
    clock.now_s = 5.0
    assert clock.step.line() == "opening, 5 s"
    assert clock.step.title == "5 s, opening"
    assert clock.at(5, "packing weights", 1, 4) == "packing weights ███░░░░░░░░░ 1 of 4"
    clock.now_s = 15.0
    assert clock.step.line() == "packing weights ███░░░░░░░░░ 1 of 4, 10 s", "nothing was done since it began"
    clock.step.clear()
    assert clock.step.line() == clock.step.title == ""


def test_rate_and_time_left_count_what_was_done_since_the_step_began() -> None:
    clock = Clock()
    clock.at(0, "packing weights", 20, 40)
    assert clock.at(2, "packing weights", 30, 40) == "packing weights █████████░░░ 30 of 40, 2 s", "too early to tell"
    assert clock.at(5, "packing weights", 30, 40) == "packing weights █████████░░░ 30 of 40, 2.0/s, about 5 s left"
    clock.at(40, "answering", 0, 10)
    assert clock.at(60, "answering", 2, 10) == "answering ██░░░░░░░░░░ 2 of 10, 10 s each, about 80 s left"
    assert clock.step.line(bar="none") == "answering: 2 of 10, 10 s each, about 80 s left"
    assert clock.step.title == "20 s, answering: 2 of 10"


def test_bytes_have_units_and_the_rate_that_was_measured() -> None:
    clock = StepClock(lambda: 0.0)
    clock("pypi:tiny", 30_000_000, 90_000_000, unit="bytes", rate=1e6)
    assert clock.line() == "pypi:tiny ████░░░░░░░░ 30.0 MB of 90.0 MB, 1.0 MB/s, about 60 s left"
    clock("pypi:tiny", 30_000_000, 0, unit="bytes", rate=1e6)
    assert clock.line() == "pypi:tiny, 30.0 MB, 1.0 MB/s"
    clock("pypi:tiny", 90_000_000, 90_000_000, unit="bytes", rate=1e6)
    assert clock.line() == "pypi:tiny ████████████ 90.0 MB of 90.0 MB, 1.0 MB/s"


def test_what_changes_within_a_step_does_not_begin_another() -> None:
    clock = Clock()
    clock.at(0, f"measuring{DETAIL}decode: cpu, run 1 of 5", 0, 10)
    line = clock.at(10, f"measuring{DETAIL}decode: cpu, run 5 of 5", 5, 10)
    assert line == "measuring ██████░░░░░░ 5 of 10, decode: cpu, run 5 of 5, 2 s each, about 10 s left"


def test_compiling_moves_before_its_first_kernel_is_there_and_has_no_rate() -> None:
    clock = Clock()
    early = clock.at(0, COMPILING, 0, 9)
    clock.now_s = 4.0
    assert clock.step.line().count("█") > early.count("█")
    assert "/s" not in clock.at(30, COMPILING, 3, 9)
    assert "left" in clock.step.line()


@pytest.mark.parametrize(
    ("width", "line"),
    [
        (200, "fetching https://example.org/model.gguf ██████░░░░░░ 5 of 10"),
        (50, "fetching https://example.org/model.gguf: 5 of 10"),
        (30, "fetching https://exa…: 5 of 10"),
        (15, "fetching ht…: 5"),
    ],
)
def test_where_there_is_no_room_the_bar_goes_first_then_of_the_name(width: int, line: str) -> None:
    clock = StepClock(lambda: 0.0)
    clock("fetching https://example.org/model.gguf", 5, 10)
    assert clock.line(width=width) == line


@pytest.mark.parametrize(
    ("share", "bar"), [(0.0, "░" * 12), (0.5, "█" * 6 + "░" * 6), (1.0, "█" * 12), (1.7, "█" * 12)]
)
def test_a_bar_is_never_longer_than_its_cells(share: float, bar: str) -> None:
    assert bar_text(share) == bar
    assert bar_text(share, "ascii") == f"[{bar.replace('█', '#').replace('░', '.')}]"


def test_numbers_are_short() -> None:
    assert [duration(seconds) for seconds in (40, 720, 12000)] == ["40 s", "12 min", "3 h 20 min"]
    assert [rate_text(rate, "count") for rate in (1234.5, 4.25, 0.2)] == ["1,234/s", "4.2/s", "5 s each"]
    assert rate_text(12_100_000, "bytes") == "12.1 MB/s"
