"""Lines of the transcript: where entries begin, and text selected with the mouse, seen and copied as it is shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.geometry import Offset
from textual.pilot import Pilot
from textual.selection import Selection
from textual.strip import Strip

from edgeinfer.app.tui.widgets.entries import AnswerEntry, QuestionEntry
from edgeinfer.app.tui.widgets.transcript import Transcript
from edgeinfer.app.tui.widgets.transcript_lines import Heights, extracted
from tests.app.tui.flows import wait_until
from tests.app.tui.transcript_app import Shown, talk

LINES = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9), st.booleans()), min_size=1, max_size=30)


@given(LINES)
def test_each_line_belongs_to_the_entry_that_has_it(entries: list[tuple[int, int, bool]]) -> None:
    heights = Heights()
    heights.guess_all(guess for guess, _, _ in entries[:-1])
    heights.guess(entries[-1][0])
    for place, (_, exact, is_measured) in enumerate(entries):
        if is_measured:
            heights.measure(place, exact)
    heights.settle()
    expected = [
        (place, line)
        for place, (guess, exact, is_measured) in enumerate(entries)
        for line in range(exact if is_measured else guess)
    ]
    assert [heights.at(line) for line in range(heights.total)] == expected
    assert [heights.is_measured(place) for place in range(len(entries))] == [entry[2] for entry in entries]
    assert [heights.top(place) + heights.of(place) for place in range(len(entries))] == [
        heights.end(place) for place in range(len(entries))
    ]
    assert heights.at(heights.total + 5)[0] == len(entries) - 1


def test_nothing_has_no_lines() -> None:
    assert Heights().total == 0


ANSWER = "A 世界 word and more.\n\n```python\nif x:\n    pass\n```\n\nlast words"


async def drag(pilot: Pilot[None], begin: tuple[int, int], end: tuple[int, int]) -> None:
    """Press, move, let go: cells of the transcript."""
    await pilot.mouse_down(Transcript, offset=begin)
    await pilot.hover(Transcript, offset=end)
    await pilot.mouse_up(Transcript, offset=end)
    await pilot.pause()


def place(app: Shown, text: str) -> tuple[int, int]:
    """The cell where a text begins."""
    for y, line in enumerate(app.lines):
        if text in line:
            return Strip.join([app.transcript.render_line(y)]).text.index(text), y
    raise AssertionError(f"{text!r} is not shown")


def reversed_text(app: Shown) -> str:
    """What is shown as selected."""
    style = app.screen.get_component_rich_style("screen--selection")
    return "".join(
        segment.text
        for y in range(app.transcript.size.height)
        for segment in app.transcript.render_line(y)
        if segment.style is not None and segment.style.bgcolor == style.bgcolor
    )


async def test_words_of_a_line_are_selected() -> None:
    app = Shown([QuestionEntry(1, "What is there to say?")])
    async with app.run_test(size=(60, 12)) as pilot:
        await wait_until(pilot, lambda: app.transcript.is_drawn)
        x, y = place(app, "there")
        await drag(pilot, (x, y), (x + 5, y))
        assert app.screen.get_selected_text() in ("there", "there ")
        assert reversed_text(app).strip() == "there"


async def test_lines_are_taken_without_the_edge_and_keep_their_margins() -> None:
    app = Shown([QuestionEntry(1, "Show me."), AnswerEntry(2, ANSWER)])
    async with app.run_test(size=(60, 20)) as pilot:
        await wait_until(pilot, lambda: app.transcript.is_drawn)
        begin, end = place(app, "if x:"), place(app, "pass")
        await drag(pilot, (0, begin[1]), (end[0] + 10, end[1]))
        assert app.screen.get_selected_text() == "if x:\n    pass"


async def test_all_of_a_long_chat_can_be_taken() -> None:
    app = Shown(talk(60))
    async with app.run_test(size=(60, 12)) as pilot:
        await wait_until(pilot, lambda: app.transcript.is_drawn)
        found = app.transcript.get_selection(Selection(None, None))
        assert found is not None
        words = found[0].split()
        assert [words[i + 1] for i, word in enumerate(words) if word == "question"] == [str(n) for n in range(0, 60, 2)]
        assert "▌" not in found[0]


async def test_selecting_does_not_fold(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = AnswerEntry(1, "<think>first this, then that</think>\n\nSo it is.")
    app = Shown([answer])
    async with app.run_test(size=(60, 12)) as pilot:
        await wait_until(pilot, lambda: app.transcript.is_drawn)
        folded, y = answer.is_folded, min(answer.fold_lines)
        await drag(pilot, (3, y), (12, y))
        assert answer.is_folded == folded


def test_wide_signs_and_ends() -> None:
    lines = ["  A 世界 b", "", "    c", "  d"]
    whole = extracted(Selection(None, None), 4, lines.__getitem__)
    assert whole == "A 世界 b\n\n  c\nd"
    part = extracted(Selection(Offset(4, 0), Offset(5, 2)), 4, lines.__getitem__)
    assert part == "世界 b\n\nc"
    assert extracted(Selection(Offset(3, 9), None), 4, lines.__getitem__) == ""
