"""How answers side by side look: while they are written and once one is kept, wide, narrow and small; parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from textual.pilot import Pilot

from edgeinfer.app.tui.app import ChatApp
from edgeinfer.app.tui.widgets.answer_columns import AnswerColumns
from tests.app.tui.chat_apps import chat_app
from tests.app.tui.flows import wait_until
from tests.app.tui.scripted import Script
from tests.app.tui.snapshots import NORMAL, SMALL, Compare, chat_of, counted, opened, say, send

Make = Callable[..., ChatApp]
WIDE = (140, 30)
QUESTION = "/several 4 A pen costs 3 and a book 4 times as much. What do both cost?"
ANSWERS = (
    "A book costs 4 * 3 = **12**. Together that is 12 + 3 = 15.\n\nThe answer is 15.",
    "The pen costs 3, and the book 4.\n\nThe answer is 7.",
    "- pen: 3\n- book: 4 times 3, which is 12\n\n```python\n3 + 12  # 15\n```\n\nThe answer is 15.",
    "Both cost 15 together, because a book is 4 times 3 and the pen is 3 more. The answer is 15.",
)


@pytest.fixture
def make(home: Path) -> Iterator[Make]:
    with chat_app(home) as make:
        yield make


async def kept(pilot: Pilot[int]) -> None:
    """All are over, and one is kept."""
    await opened(pilot)
    await say(pilot, QUESTION)
    await counted(pilot)


class Written:
    """All are being written."""

    def __init__(self, script: Script, n_pieces: int = 32) -> None:
        self._script = script
        self._n_pieces = n_pieces

    async def __call__(self, pilot: Pilot[int]) -> None:
        screen = chat_of(pilot).chat_screen
        await opened(pilot)
        self._script.hold()
        await send(pilot, QUESTION)
        self._script.step(self._n_pieces)

        def said() -> int:
            last = screen.transcript.entries[-1] if screen.transcript.entries else None
            return isinstance(last, AnswerColumns) and sum(each.source.count(" ") for each in last.columns)

        await wait_until(pilot, lambda: said() == self._n_pieces)
        screen.metered_s = 0.0
        screen.take_text()
        screen.transcript.draw()
        await pilot.pause()


@pytest.mark.parametrize("theme", ["textual-dark", "textual-light"])
def test_one_of_four_is_kept_wide(snap_compare: Compare, make: Make, theme: str) -> None:
    assert snap_compare(make(Script(*ANSWERS), theme=theme), terminal_size=WIDE, run_before=kept)


@pytest.mark.parametrize("size", [SMALL, NORMAL])
def test_one_of_four_is_kept(snap_compare: Compare, make: Make, size: tuple[int, int]) -> None:
    assert snap_compare(make(Script(*ANSWERS)), terminal_size=size, run_before=kept)


@pytest.mark.parametrize("size", [SMALL, NORMAL, WIDE])
def test_while_four_are_written(snap_compare: Compare, make: Make, size: tuple[int, int]) -> None:
    script = Script(*ANSWERS)
    assert snap_compare(make(script), terminal_size=size, run_before=Written(script))


def test_without_colour(snap_compare: Compare, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert snap_compare(make(Script(*ANSWERS)), terminal_size=WIDE, run_before=kept)


def test_parts(snap_compare: Compare, make: Make) -> None:
    async def mapped(pilot: Pilot[int]) -> None:
        await opened(pilot)
        await say(pilot, "/map Translate to French:\nthe dog\nthe *black* cat\nthe cow")
        await counted(pilot)

    assert snap_compare(make(Script("le chien", "le chat noir", "la vache")), terminal_size=NORMAL, run_before=mapped)
