"""The transcript: where it stays while text comes, what it draws, and selecting messages."""

from __future__ import annotations

from textual.app import App, ComposeResult

from edgeinfer.app.tui.widgets.answer import Answer
from edgeinfer.app.tui.widgets.entry import Entry
from edgeinfer.app.tui.widgets.question import Question
from edgeinfer.app.tui.widgets.transcript import Transcript
from tests.app.tui.waiting import wait_until


class Shown(App[None]):
    def compose(self) -> ComposeResult:
        yield Transcript()

    @property
    def transcript(self) -> Transcript:
        return self.query_one(Transcript)

    @property
    def lines(self) -> list[str]:
        """What is seen."""
        return [self.transcript.render_line(y).text.rstrip() for y in range(self.transcript.size.height)]


def talk(n_messages: int) -> list[Entry]:
    entries: list[Entry] = []
    for number in range(n_messages):
        if number % 2:
            entries.append(Answer(number, f"answer {number}\n\n- one\n- two\n\nend {number}", note="note"))
        else:
            entries.append(Question(number, f"question {number}"))
    return entries


async def test_the_end_is_shown_and_followed_while_text_comes() -> None:
    app = Shown()
    async with app.run_test(size=(60, 12)) as pilot:
        await app.transcript.show(talk(40))
        await wait_until(pilot, lambda: "end 39" in "\n".join(app.lines))
        answer = Answer(99)
        await app.transcript.add(answer)
        answer.begin()
        for number in range(30):
            answer.grow(f"line {number}\n\n")
        await wait_until(pilot, lambda: "line 29" in "\n".join(app.lines))
        assert app.transcript.is_following


async def test_text_that_comes_does_not_move_what_is_read() -> None:
    app = Shown()
    async with app.run_test(size=(60, 12)) as pilot:
        await app.transcript.show(talk(40))
        await wait_until(pilot, lambda: "end 39" in "\n".join(app.lines))
        app.transcript.scroll_page_up(animate=False)
        await wait_until(pilot, lambda: not app.transcript.is_following)
        await pilot.pause(0.3)
        before = app.lines
        assert "more below" in before[-1]
        answer = app.transcript.last_answer
        assert answer is not None
        answer.begin()
        for number in range(30):
            answer.grow(f"line {number}\n\n")
        await pilot.pause(0.6)
        assert app.lines[:-1] == before[:-1]
        app.transcript.follow()
        await wait_until(pilot, lambda: "line 29" in "\n".join(app.lines))


async def test_going_up_shows_every_message_in_order() -> None:
    app = Shown()
    async with app.run_test(size=(60, 12)) as pilot:
        await app.transcript.show(talk(60))
        seen = ""
        for _ in range(60):
            await pilot.pause(0.02)
            seen = "\n".join(app.lines) + "\n" + seen
            if app.transcript.scroll_offset.y == 0:
                break
            app.transcript.scroll_to(y=app.transcript.scroll_offset.y - 6, animate=False, immediate=True)
        for number in range(60):
            assert f"{'end' if number % 2 else 'question'} {number}" in seen


async def test_messages_are_selected_by_steps_from_the_last() -> None:
    app = Shown()
    async with app.run_test(size=(60, 12)) as pilot:
        await app.transcript.show(talk(20))
        app.transcript.select_previous()
        assert app.transcript.selected == 19
        for _ in range(10):
            app.transcript.select_previous()
        assert app.transcript.selected == 9
        await wait_until(pilot, lambda: "end 9" in "\n".join(app.lines))
        for _ in range(11):
            app.transcript.select_next()
        assert app.transcript.selected is None
        assert app.transcript.is_following


async def test_a_message_that_was_searched_for_is_shown_at_the_top() -> None:
    app = Shown()
    async with app.run_test(size=(60, 12)) as pilot:
        await app.transcript.show(talk(60))
        app.transcript.scroll_to_message(11)
        await wait_until(pilot, lambda: "answer 11" in app.lines[0])
        assert app.transcript.selected == 11


async def test_another_width_or_theme_draws_everything_anew() -> None:
    app = Shown()
    async with app.run_test(size=(60, 12)) as pilot:
        await app.transcript.show([Answer(1, "word " * 30)])
        await pilot.resize_terminal(30, 12)
        await wait_until(pilot, lambda: max(map(len, app.lines)) <= 30 and "word" in app.lines[5])
        app.theme = "textual-light"
        await pilot.pause(0.1)
        assert "word" in app.lines[0]


async def test_a_long_question_is_folded_until_it_is_opened() -> None:
    app = Shown()
    async with app.run_test(size=(60, 60)) as pilot:
        await app.transcript.show([Question(1, "\n".join(f"row {number}" for number in range(40)))])
        await wait_until(pilot, lambda: "24 more lines" in "\n".join(app.lines))
        assert "row 39" not in "\n".join(app.lines)
        app.transcript.toggle_thinking()
        await wait_until(pilot, lambda: "row 39" in "\n".join(app.lines))


async def test_nothing_is_drawn_while_nothing_changes() -> None:
    app = Shown()
    async with app.run_test(size=(60, 12)) as pilot:
        await app.transcript.show(talk(30))
        await pilot.pause(0.5)
        drawn: list[Entry] = []
        for entry in app.transcript.entries:
            entry.changed = drawn.append
        await pilot.pause(0.5)
        assert not drawn
